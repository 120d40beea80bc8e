// The text, a sentence in a row with its time: in step with the player, and searched.

import { isEnded, join, sentences, shortClock } from "./cues.js";
import { element, say } from "./words.js";

const PAUSE_S = 2; // that ends a sentence, whatever its marks
const MOST_CHARS = 300; // of a sentence out of several cues

export class Transcript {
	// text: the list; find: the field; found: how many there are.
	constructor({ text, player, find, found }) {
		Object.assign(this, { text, player, find, found, tentative: element("li", "tentative") });
		text.onclick = ({ target }) => this.choose(target.closest("li"));
		text.onkeydown = (event) => this.move(event);
		find.oninput = () => this.search();
		find.onkeydown = ({ key, shiftKey }) => {
			if (key === "Enter") this.goTo(this.hit + (shiftKey ? -1 : 1));
		};
		player.ontimeupdate = player.onseeked = () => this.follow();
		this.clear();
	}

	clear() {
		Object.assign(this, { rows: [], nBefore: 0, now: null, pattern: null, hit: 0 });
		this.text.replaceChildren();
		this.find.value = this.found.textContent = "";
	}

	show(cues) {
		this.clear();
		for (const cue of cues) this.add(cue);
	}

	// Behind what is there; a sentence that is not over goes on.
	add(cue, isTurn = false) {
		this.tentative.remove();
		this.nBefore = this.rows.length;
		for (const part of sentences(cue)) {
			const last = this.rows.at(-1);
			const goesOn = last && !isTurn && !isEnded(last.cue.text) && part.start - last.cue.end < PAUSE_S;
			if (goesOn && last.cue.text.length < MOST_CHARS) this.write(last, join(last.cue, part));
			else this.write(this.newRow(), part);
		}
	}

	// Put a longer one in place of the last cue that was added, which was a turn.
	replace(cue) {
		for (const { node } of this.rows.splice(this.nBefore)) node.remove();
		this.add(cue, true);
	}

	// What may still change, behind all that is confirmed.
	addTentative(text) {
		this.tentative.textContent = text;
		if (text) this.text.append(this.tentative);
		else this.tentative.remove();
	}

	newRow() {
		const row = { node: element("li"), time: element("button", "time"), words: element("span") };
		row.node.append(row.time, row.words);
		row.time.tabIndex = this.rows.length ? -1 : 0;
		this.text.append(row.node);
		this.rows.push(row);
		return row;
	}

	write(row, cue) {
		row.cue = cue;
		row.time.textContent = shortClock(cue.start);
		row.time.setAttribute("aria-label", say("playFrom", { time: shortClock(cue.start) }));
		this.mark(row);
	}

	// ---- the player ----

	choose(node) {
		const row = this.rows.find((one) => one.node === node);
		if (!row || !getSelection().isCollapsed || !this.player.src) return;
		this.player.currentTime = row.cue.start;
		this.player.play().catch(() => {}); // a sound that the browser cannot play: the page says so
	}

	follow() {
		const { currentTime, paused } = this.player;
		const now = this.rows.findLast(({ cue }) => cue.start <= currentTime + 0.01);
		if (now === this.now) return;
		this.now?.node.removeAttribute("aria-current");
		this.now = now;
		now?.node.setAttribute("aria-current", "true");
		if (!paused) now?.node.scrollIntoView({ block: "nearest" });
	}

	// One sentence is reached with Tab, the others from it with the arrows.
	move(event) {
		const at = this.rows.findIndex(({ time }) => time === event.target);
		const to = this.rows.at({ ArrowDown: at + 1, ArrowUp: Math.max(at - 1, 0), Home: 0, End: -1 }[event.key] ?? Infinity);
		if (!to) return;
		event.preventDefault();
		this.rows[at].time.tabIndex = -1;
		to.time.tabIndex = 0;
		to.time.focus();
	}

	// ---- search ----

	search() {
		const text = this.find.value.trim().replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
		this.pattern = text && new RegExp(`(${text})`, "iu");
		this.rows.forEach((row) => this.mark(row));
		this.goTo(0);
	}

	mark(row) {
		const parts = this.pattern ? row.cue.text.split(this.pattern) : [row.cue.text];
		row.words.replaceChildren(...parts.map((part, i) => (i % 2 ? element("mark", "", part) : part)));
	}

	goTo(hit) {
		const hits = [...this.text.querySelectorAll("mark")];
		this.text.querySelector(".hit")?.classList.remove("hit");
		this.hit = hits.length ? (hit + hits.length) % hits.length : 0;
		hits[this.hit]?.classList.add("hit");
		hits[this.hit]?.scrollIntoView({ block: "center" });
		this.found.textContent = this.pattern ? say(hits.length ? "hits" : "noHits", { hit: this.hit + 1, hits: hits.length }) : "";
	}
}

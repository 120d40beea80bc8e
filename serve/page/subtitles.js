// The editor of subtitles: a table of cues below their sound. Every change can be undone.

import { clock, fit, isTooLong, join, middle, MOST_CHARS, MOST_LINES, seconds, split, widest } from "./cues.js";
import { element, say } from "./words.js";
import { Waveform } from "./waveform.js";

const LEAST_S = 0.1; // that a cue is shown
const STEP_S = 0.2; // of the arrow keys on the waveform

export class SubtitleEditor {
	// onChange(item): its cues.
	constructor({ root, player, onChange }) {
		Object.assign(this, { root, onChange });
		this.part = (name) => root.querySelector(`.${name}`);
		this.wave = new Waveform({
			canvas: root.querySelector("canvas"),
			player,
			onSelect: (at) => this.select(at),
			onTimes: (at, times) => this.setTimes(at, times),
			onTime: (time) => this.showCaption(time),
		});
		root.onclick = ({ target }) => this.actions[target.dataset.do]?.();
		root.onkeydown = (event) => this.press(event);
		root.addEventListener("focusin", ({ target }) => this.select(this.rowOf(target)));
		root.onchange = ({ target }) => this.commit(target);
		root.oninput = ({ target }) => this.type(target);
	}

	actions = {
		play: () => this.wave.play(),
		split: () => this.split(),
		join: () => this.at + 1 < this.cues.length && this.replace(2, [join(...this.cues.slice(this.at, this.at + 2))]),
		fit: () => this.change(this.cues.flatMap(fit)),
		undo: () => this.step(this.item.past, this.item.future),
		redo: () => this.step(this.item.future, this.item.past),
		replace: () => this.replaceText(),
		next: () => this.focus(this.at + 1),
		previous: () => this.focus(this.at - 1),
		back: () => this.wave.seek(this.wave.time - STEP_S),
		forth: () => this.wave.seek(this.wave.time + STEP_S),
		start: () => this.setTimes(this.at, { start: this.wave.time }),
		end: () => this.setTimes(this.at, { end: this.wave.time }),
	};

	get cues() {
		return this.item.cues;
	}

	open(item) {
		this.item = item;
		this.at = 0;
		this.wave.open(item.file);
		this.render();
	}

	// ---- changes ----

	change(cues) {
		this.item.past.push(this.cues);
		this.item.future.length = 0;
		this.put(cues);
	}

	put(cues) {
		this.item.cues = cues;
		this.render();
		this.onChange(this.item);
	}

	step(from, to) {
		if (!from.length) return;
		to.push(this.cues);
		this.put(from.pop());
	}

	// Other cues in place of `n`, from the selected one on.
	replace(n, cues) {
		this.change(this.cues.toSpliced(this.at, n, ...cues));
		this.focus(this.at);
	}

	split() {
		const { value, selectionStart: at } = this.field(this.at);
		this.commit(this.field(this.at));
		this.replace(1, split(this.cues[this.at], at && at < value.length ? at : middle(value)));
	}

	// Cues do not overlap.
	setTimes(at, { start = this.cues[at].start, end = this.cues[at].end }) {
		const cue = this.cues[at];
		start = Math.max(this.cues[at - 1]?.end ?? 0, Math.min(start, cue.end - LEAST_S));
		end = Math.min(this.cues[at + 1]?.start ?? Infinity, Math.max(end, start + LEAST_S));
		if (start !== cue.start || end !== cue.end) this.change(this.cues.with(at, { ...cue, start, end }));
	}

	replaceText() {
		const [find, instead] = ["find", "instead"].map((name) => this.part(name).value);
		if (find) this.change(this.cues.map((cue) => ({ ...cue, text: cue.text.replaceAll(find, instead) })));
	}

	// Take what was typed into a field of the table.
	commit(field) {
		const at = this.rowOf(field);
		const cue = this.cues[at];
		if (!cue || field.value === field.before) return;
		if (field.matches("textarea")) this.change(this.cues.with(at, { ...cue, text: field.value }));
		else this.setTimes(at, { [field.name]: seconds(field.value) });
		this.render();
	}

	// ---- what is shown ----

	// Rows are kept, so that the field that has the focus keeps it.
	render() {
		const body = this.part("cues");
		while (body.rows.length > this.cues.length) body.lastChild.remove();
		while (body.rows.length < this.cues.length) body.append(newRow(body.rows.length + 1));
		this.cues.forEach((cue, at) => {
			for (const field of body.rows[at].querySelectorAll("input, textarea")) {
				field.value = field.before = field.name === "text" ? cue.text : clock(cue[field.name], ".");
				field.setAttribute("aria-label", `${say(field.name)} ${at + 1}`);
			}
			this.check(at, cue.text);
		});
		this.showVerdict();
		this.select(Math.min(this.at, this.cues.length - 1));
	}

	check(at, text) {
		const row = this.part("cues").rows[at];
		row.classList.toggle("too-long", isTooLong(text));
		row.querySelector("output").textContent = `${widest(text)}/${MOST_CHARS} · ${text.split("\n").length}/${MOST_LINES}`;
	}

	showVerdict() {
		const n = this.part("cues").querySelectorAll(".too-long").length;
		this.part("verdict").textContent = say("tooLong", { n });
	}

	type(field) {
		if (!field.matches("textarea")) return;
		this.check(this.rowOf(field), field.value);
		this.showVerdict();
	}

	rowOf(field) {
		return [...this.part("cues").rows].indexOf(field.closest("tr"));
	}

	field(at) {
		return this.part("cues").rows[at]?.querySelector("textarea");
	}

	focus(at) {
		this.field(at)?.focus();
	}

	select(at) {
		if (at < 0) return;
		this.part("selected")?.classList.remove("selected");
		this.part("cues").rows[at]?.classList.add("selected");
		this.at = at;
		this.wave.show(this.cues, at);
	}

	showCaption(time) {
		const cue = this.item?.cues.find(({ start, end }) => start <= time && time < end);
		this.part("caption").textContent = cue?.text ?? "";
	}

	press(event) {
		const { target } = event;
		const mark = event.ctrlKey || event.metaKey ? "Ctrl+" : event.altKey ? "Alt+" : "";
		const action = KEYS[mark + event.code] ?? (target.matches("canvas") && WAVE_KEYS[event.key]);
		// What is being typed, the browser itself undoes.
		if (!action || (event.code === "KeyZ" && "before" in target && target.value !== target.before)) return;
		event.preventDefault();
		this.actions[action]();
	}
}

const KEYS = {
	"Ctrl+Enter": "split",
	"Alt+KeyJ": "join",
	"Alt+KeyP": "play",
	"Alt+ArrowDown": "next",
	"Alt+ArrowUp": "previous",
	"Ctrl+KeyZ": "undo",
	"Ctrl+KeyY": "redo",
};
const WAVE_KEYS = {
	" ": "play",
	ArrowLeft: "back",
	ArrowRight: "forth",
	ArrowUp: "previous",
	ArrowDown: "next",
	"[": "start",
	"]": "end",
};

function newRow(number) {
	const row = element("tr");
	const fields = ["start", "end", "text"].map((name) => Object.assign(element(name === "text" ? "textarea" : "input"), { name }));
	for (const part of [number, ...fields, element("output")]) row.insertCell().append(part);
	return row;
}

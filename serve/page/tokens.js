// The text with every token in the colour of its drafter as with `--print-drafts`, and the passes as a strip.

import { number, say } from "./words.js";

const COLOURS = ["green", "yellow", "cyan", "magenta", "blue", "red"];
const PARAGRAPH_S = 2; // of silence that begin a paragraph

// The class of what a drafter guessed.
const by = (name, drafters) => `by-${name ? COLOURS[Math.max(drafters.indexOf(name), 0) % COLOURS.length] : "own"}`;

export class TokenView {
	constructor({ text, strip, legend, note }) {
		Object.assign(this, { text, strip, legend, note });
		for (const place of [text, strip]) {
			place.onpointerover = (event) => this.point(event.target.dataset.pass);
			place.onpointerleave = () => this.show();
			place.onclick = (event) => this.choose(event.target.dataset.pass);
		}
		strip.onkeydown = (event) => this.move(event);
		strip.onfocus = () => this.choose(this.at);
		this.clear();
	}

	clear() {
		Object.assign(this, { passes: [], at: 0, most: 4, lastEnd: Infinity, paragraph: null });
		this.text.replaceChildren();
		this.strip.replaceChildren();
		this.legend.replaceChildren();
		this.tentative = element("span", "tentative");
		this.show();
		this.describeStrip();
	}

	// Add a segment, or a part of one, behind what is there.
	add(segment, drafters) {
		this.tentative.remove();
		this.list(drafters);
		const first = this.passes.length;
		for (const pass of segment.passes) this.addPass(pass, drafters);
		const tokens = segment.tokens.map((token) => this.token(token, first, drafters));
		const place = this.place(segment);
		if (!place.hasChildNodes() && tokens.length) tokens[0].textContent = tokens[0].textContent.trimStart();
		place.append(...tokens);
		this.describeStrip();
	}

	// What may still change, behind all that is confirmed.
	addTentative(text) {
		this.tentative.textContent = text;
		if (text) this.place({}).append(this.tentative);
		else this.tentative.remove();
	}

	place({ start, end }) {
		if (!this.paragraph || start - this.lastEnd >= PARAGRAPH_S) {
			this.paragraph = element("p");
			this.text.append(this.paragraph);
		}
		this.lastEnd = end ?? this.lastEnd;
		return this.paragraph;
	}

	token({ text, by: name, pass }, first, drafters) {
		const token = element("span", `token ${by(name, drafters)}`, text);
		token.dataset.pass = first + pass;
		this.passes[first + pass]?.tokens.push(token);
		return token;
	}

	addPass(pass, drafters) {
		const column = element("i", `column ${by(pass.drafter, drafters)}`);
		const rows = Math.max(pass.rows ?? 0, pass.accepted);
		column.dataset.pass = this.passes.length;
		column.style.setProperty("--accepted", pass.accepted);
		column.style.setProperty("--rows", rows);
		this.most = Math.max(this.most, rows);
		this.strip.style.setProperty("--most", this.most);
		this.strip.append(column);
		this.passes.push({ ...pass, column, tokens: [] });
	}

	list(drafters) {
		const entries = [...drafters, null].map((name) => element("li", by(name, drafters), name ?? say("ownTokens")));
		this.legend.replaceChildren(...entries);
	}

	// A pass under the pointer is shown for as long as it is there; one that was chosen stays.
	point(number) {
		if (number !== undefined) this.show(Number(number));
	}

	choose(number) {
		if (number === undefined || !this.passes.length) return;
		this.at = Math.max(0, Math.min(number, this.passes.length - 1));
		this.show(this.at);
		this.passes[this.at].column.scrollIntoView({ block: "nearest", inline: "nearest" });
		this.describeStrip();
	}

	move(event) {
		const { at } = this;
		const next = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: Infinity }[event.key];
		if (next === undefined) return;
		event.preventDefault();
		this.choose(next);
	}

	show(at) {
		for (const lit of this.lit ?? []) lit.classList.remove("lit");
		const pass = this.passes[at];
		this.lit = pass ? [pass.column, ...pass.tokens] : [];
		for (const one of this.lit) one.classList.add("lit");
		this.note.textContent = pass ? this.describe(at) : this.passes.length ? say("passHint") : "";
	}

	describe(at) {
		const { drafter, rows, accepted, tokens } = this.passes[at];
		const text = tokens.map((token) => token.textContent).join("").trim() || "…";
		const values = { pass: number(at + 1), rows, accepted, drafter, text };
		if (!accepted) return say("passRefused", { ...values, rows: rows ?? 0 });
		return say(rows === undefined ? "passLive" : "passDrafted", values);
	}

	describeStrip() {
		const last = Math.max(this.passes.length, 1);
		const text = this.passes.length ? this.describe(this.at) : say("passHint");
		const about = { valuemin: 1, valuemax: last, valuenow: this.at + 1, valuetext: text };
		for (const [name, value] of Object.entries(about)) this.strip.setAttribute(`aria-${name}`, value);
	}
}

export function element(tag, className = "", text = "") {
	const made = document.createElement(tag);
	made.className = className;
	made.textContent = text;
	return made;
}

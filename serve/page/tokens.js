// The text with every token in the colour of its drafter, and the passes of the decoder as a strip.
//
// Colours and their order are those of `specedge transcribe --print-drafts`.

import { number, say } from "./words.js";

const COLOURS = ["green", "yellow", "cyan", "magenta", "blue", "red"];
// A pause that begins a paragraph, seconds.
const PARAGRAPH_S = 2;

export function colourOf(name, drafters) {
  return name ? COLOURS[Math.max(drafters.indexOf(name), 0) % COLOURS.length] : "own";
}

export class TokenView {
  constructor({ text, strip, legend, note }) {
    Object.assign(this, { text, strip, legend, note });
    for (const place of [text, strip]) {
      place.addEventListener("pointerover", (event) => this.point(event.target.dataset.pass));
      place.addEventListener("pointerleave", () => this.show(this.at));
      place.addEventListener("click", (event) => this.choose(event.target.dataset.pass));
    }
    strip.addEventListener("keydown", (event) => this.move(event));
    strip.addEventListener("focus", () => this.choose(this.at ?? 0));
    this.clear();
  }

  clear() {
    this.passes = [];
    this.at = null;
    this.most = 0;
    this.lastEnd = null;
    this.paragraph = null;
    this.nDrafters = -1;
    this.text.replaceChildren();
    this.strip.replaceChildren();
    this.tentative = element("span", "tentative");
    this.show(null);
    this.describeStrip();
  }

  // Add a segment, or a part of one, behind what is there.
  add(segment, drafters) {
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
    const hasPause = this.lastEnd !== null && start - this.lastEnd >= PARAGRAPH_S;
    if (!this.paragraph || hasPause) {
      this.paragraph = element("p");
      this.text.append(this.paragraph);
    }
    this.lastEnd = end ?? this.lastEnd;
    return this.paragraph;
  }

  token({ text, by, pass }, first, drafters) {
    const token = element("span", `token by-${colourOf(by, drafters)}`);
    token.textContent = text;
    token.dataset.pass = first + pass;
    this.passes[first + pass]?.tokens.push(token);
    return token;
  }

  addPass(pass, drafters) {
    const column = element("i", `column by-${colourOf(pass.drafter, drafters)}`);
    column.dataset.pass = this.passes.length;
    column.style.setProperty("--accepted", pass.accepted);
    column.style.setProperty("--rows", Math.max(pass.rows ?? 0, pass.accepted));
    this.most = Math.max(this.most, pass.rows ?? 0, pass.accepted);
    this.strip.style.setProperty("--most", Math.max(this.most, 4));
    this.strip.append(column);
    this.passes.push({ ...pass, column, tokens: [] });
  }

  list(drafters) {
    if (this.nDrafters === drafters.length) return;
    this.nDrafters = drafters.length;
    const entries = [...drafters, null].map((name) => {
      const entry = element("li", `by-${colourOf(name, drafters)}`);
      entry.textContent = name ?? say("ownTokens");
      return entry;
    });
    this.legend.replaceChildren(...entries);
  }

  // A pass under the pointer is shown for as long as it is there; one that was chosen stays.
  point(number) {
    if (number !== undefined) this.show(Number(number));
  }

  choose(number) {
    if (number === undefined || !this.passes.length) return;
    this.at = Math.max(0, Math.min(Number(number), this.passes.length - 1));
    this.show(this.at);
    this.passes[this.at].column.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.describeStrip();
  }

  move(event) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
    const ends = { Home: 0, End: this.passes.length - 1 };
    const next = event.key in steps ? (this.at ?? 0) + steps[event.key] : ends[event.key];
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
    const values = {
      pass: number(at + 1),
      rows: number(rows ?? accepted),
      accepted: number(accepted),
      drafter: drafter ?? "",
      text: tokens.map((token) => token.textContent).join("").trim(),
    };
    const kind = accepted ? (rows === undefined ? "passLive" : "passDrafted") : rows ? "passRefused" : "passPlain";
    return say(kind, values);
  }

  describeStrip() {
    const last = Math.max(this.passes.length, 1);
    const about = { valuemin: 1, valuemax: last, valuenow: (this.at ?? 0) + 1 };
    about.valuetext = this.passes.length ? this.describe(this.at ?? 0) : say("noPasses");
    for (const [name, value] of Object.entries(about)) this.strip.setAttribute(`aria-${name}`, value);
  }
}

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// Who guessed what in one run: every token in the colour of its drafter as with `--print-drafts`, and the figures.

import { element, number, say } from "./words.js";

const COLOURS = ["green", "yellow", "cyan", "magenta", "blue", "red"];
const EARLIER = "earlier"; // the drafter that repeats what was decoded before of the same sound

export function showGuesses({ figures, legend, text }, item) {
	const tokens = item.segments.flatMap((segment) => segment.tokens);
	figures.textContent = describe(tokens, item.figures);
	const names = [...item.drafters, null].filter((name) => tokens.some(({ by }) => by === name));
	const colour = (name) => `by-${name ? COLOURS[item.drafters.indexOf(name) % COLOURS.length] : "own"}`;
	const count = (name) => number(tokens.filter(({ by }) => by === name).length);
	legend.replaceChildren(...names.map((name) => element("li", colour(name), `${name ?? say("ownTokens")} ${count(name)}`)));
	text.replaceChildren(...tokens.map(({ text, by }) => element("span", `token ${colour(by)}`, text)));
	legend.hidden = text.hidden = tokens.every(({ by }) => !by);
}

function describe(tokens, figures) {
	const guessed = tokens.filter(({ by }) => by).length;
	const isRepeated = tokens.some(({ by }) => by === EARLIER);
	const counts = say(guessed ? "guessed" : "nothingGuessed", { guessed: number(guessed), all: number(tokens.length) });
	return [counts, isRepeated ? say("repeated") : speedUp(guessed, figures), times(figures)].join(" ").trim();
}

// Beside the time that a pass for each token takes here, where that was measured.
function speedUp(guessed, figures) {
	if (!guessed || !figures?.plain_decode_s || !figures.decode_s) return "";
	return say("speedUp", { times: number(figures.plain_decode_s / figures.decode_s, 2) });
}

function times(figures) {
	if (!figures?.encode_s) return "";
	const [encoder, decoder] = [figures.encode_s, figures.decode_s].map((seconds) => number(seconds, 1));
	return say("times", { encoder, decoder });
}

// The figures of a transcription as tiles, and the run without drafter beside the one with it.

import { element } from "./tokens.js";
import { number, say } from "./words.js";

export function showFigures(place, { figures, segments, plain }) {
	place.replaceChildren(realTime(figures), perPass(counts({ figures, segments })), encoder(figures), speedUp(figures, plain));
}

function tile(name, value = "–", note = "") {
	const made = element("div", "tile");
	made.append(element("small", "", say(name)), element("strong", "", value), element("small", "", note));
	return made;
}

function bar(share) {
	const made = element("div", "share");
	made.style.setProperty("--share", share);
	return made;
}

// Live text has no figures of the server: its tokens and passes are counted.
function counts({ figures, segments }) {
	const sum = (name) => segments.reduce((total, segment) => total + segment[name].length, 0);
	return figures ?? { tokens: sum("tokens"), passes: sum("passes") };
}

function realTime(figures) {
	const factor = figures?.real_time_factor;
	if (!factor) return tile("realTime");
	return tile("realTime", number(factor, 3), say("realTimeNote", { times: number(1 / factor, 1) }));
}

function perPass({ tokens, passes }) {
	const value = passes ? number(tokens / passes, 2) : "–";
	return tile("perPass", value, say("perPassNote", { tokens: number(tokens), passes: number(passes) }));
}

function encoder(figures) {
	if (!figures?.encode_s) return tile("encoder");
	const whole = figures.encode_s + figures.decode_s;
	const share = figures.encode_s / whole;
	const made = tile("encoder", `${number(100 * share)} %`, say("encoderNote", { seconds: number(whole, 2) }));
	made.append(bar(share));
	return made;
}

function speedUp(figures, plain) {
	const seconds = plain?.figures.decode_s ?? figures?.plain_decode_s;
	if (!seconds || !figures?.decode_s) return tile("speedUp", "–", say("speedUpNone"));
	return tile("speedUp", `${number(seconds / figures.decode_s, 2)} ×`, say(plain ? "speedUpRun" : "speedUpPrice"));
}

// The passes of both runs, and the difference of their tokens, which must be empty.
export function showComparison(place, item) {
	const [ours, theirs] = [item, item.plain].map(({ segments }) => segments.flatMap(({ tokens }) => tokens.map(({ text }) => text)));
	const parts = difference(ours, theirs);
	const tokens = number(parts ? Math.max(parts[0].length, parts[1].length) : ours.length);
	const verdict = element("p", parts ? "error" : "same", say(parts ? "different" : "same", { tokens }));
	const most = Math.max(counts(item).passes, counts(item.plain).passes, 1);
	place.replaceChildren(verdict, row(item.drafters.join(" + "), item, most), row(say("compareWithout"), item.plain, most));
	if (parts) place.append(element("del", "", parts[0].join("")), element("ins", "", parts[1].join("")));
}

// What stands between the common beginning and the common end of two lists; null where they are the same.
function difference(ours, theirs) {
	const least = Math.min(ours.length, theirs.length);
	let [before, after] = [0, 0];
	while (before < least && ours[before] === theirs[before]) before++;
	if (before === ours.length && before === theirs.length) return null;
	while (after < least - before && ours.at(-1 - after) === theirs.at(-1 - after)) after++;
	return [ours, theirs].map((list) => list.slice(before, list.length - after));
}

function row(name, run, most) {
	const { passes, decode_s } = counts(run);
	const values = { passes: number(passes), seconds: decode_s === undefined ? "–" : number(decode_s, 2) };
	const made = element("div", "run");
	made.append(element("span", "", name), bar(passes / most), element("small", "", say("compareRow", values)));
	return made;
}

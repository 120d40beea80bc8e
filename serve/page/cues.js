// Subtitles: pieces of text with their times, and the files made of them. Nothing here touches the page.

export const MOST_CHARS = 42; // in a line
export const MOST_LINES = 2;

// Of a transcription: a cue for each segment. `words` are there where the times of words are known.
export const cueOf = ({ start, end, text, words }) => ({ start, end, text: text.trim(), words });
export const cuesOf = (segments) => segments.map(cueOf);

// "1:02", or "1:01:02".
export const shortClock = (time) => clock(time).slice(0, 8).replace(/^(00:)?0?/, "");

// "00:01:02,345", or with another mark in front of the thousandths.
export function clock(time, mark = ",") {
	const ms = Math.round(1000 * time);
	const part = (value, digits = 2) => String(Math.floor(value)).padStart(digits, "0");
	return `${part(ms / 3600000)}:${part((ms / 60000) % 60)}:${part((ms / 1000) % 60)}${mark}${part(ms % 1000, 3)}`;
}

// Of a clock's text, from "62.3" on; undefined where it is none.
export function seconds(text) {
	const found = /^(?:(?:(\d+):)?(\d+):)?(\d+(?:[.,]\d*)?)$/.exec(text.trim());
	return found ? 3600 * (found[1] ?? 0) + 60 * (found[2] ?? 0) + Number(found[3].replace(",", ".")) : undefined;
}

// ---- lines ----

export const widest = (text) => Math.max(...text.split("\n").map((line) => line.length));

export const isTooLong = (text) => widest(text) > MOST_CHARS || text.split("\n").length > MOST_LINES;

// The blank nearest to the middle, or the middle where there is none.
export function middle(text) {
	const blanks = [...text.matchAll(/\s/g)].map(({ index }) => index);
	const far = (index) => Math.abs(index - text.length / 2);
	return blanks.reduce((a, b) => (far(b) < far(a) ? b : a), blanks[0] ?? Math.floor(text.length / 2));
}

// In one line or two of much the same length.
function breakLines(text) {
	const line = text.replace(/\s+/g, " ").trim();
	const at = middle(line);
	return line.length <= MOST_CHARS ? line : `${line.slice(0, at)}\n${line.slice(at).trim()}`;
}

// ---- cues out of cues ----

const count = (text) => text.split(/\s+/).filter(Boolean).length;

// In two at a character; the times are those of the words, where they are known and still the same in number.
export function split(cue, at) {
	const [before, after] = [cue.text.slice(0, at).trim(), cue.text.slice(at).trim()];
	if (!before || !after) return [cue];
	const n = count(before);
	const words = cue.words?.length === n + count(after) ? cue.words : null;
	const time = cue.start + ((cue.end - cue.start) * before.length) / cue.text.length;
	return [
		{ start: cue.start, end: words?.[n - 1].end ?? time, text: before, words: words?.slice(0, n) },
		{ start: words?.[n].start ?? time, end: cue.end, text: after, words: words?.slice(n) },
	];
}

export function join(first, second) {
	const words = first.words && second.words && [...first.words, ...second.words];
	return { start: first.start, end: second.end, text: `${first.text} ${second.text}`, words };
}

const PARTS = new Intl.Segmenter(undefined, { granularity: "sentence" });
const LEAST_CHARS = 16; // of a sentence that stands alone
const SHORTENED = /\b\p{Lu}\p{L}{0,2}\.\s*$/u; // "Mr."

// A cue for each sentence.
export function sentences(cue) {
	let end = 0;
	for (const { segment } of PARTS.segment(cue.text)) {
		end += segment.length;
		if (end >= LEAST_CHARS && !SHORTENED.test(segment)) break;
	}
	const [first, rest] = split(cue, end);
	return rest ? [first, ...sentences(rest)] : [first];
}

// Whether a sentence ends there.
export const isEnded = (text) => /[.!?…。！？]\P{L}*$/u.test(text);

// In as many cues as it takes for every line to fit.
export function fit(cue) {
	const text = breakLines(cue.text);
	return isTooLong(text) ? split(cue, middle(cue.text)).flatMap(fit) : [{ ...cue, text }];
}

// ---- files ----

// A blank line would end a cue too early.
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean).join("\n");
const flat = (text) => lines(text).replaceAll("\n", " ");
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const FORMATS = {
	srt: ({ cues }) =>
		cues.map(({ start, end, text }, i) => `${i + 1}\n${clock(start)} --> ${clock(end)}\n${lines(text).replaceAll("-->", "->")}\n\n`),
	vtt: ({ cues }) => [
		"WEBVTT\n\n",
		...cues.map(({ start, end, text }) => `${clock(start, ".")} --> ${clock(end, ".")}\n${escaped(lines(text))}\n\n`),
	],
	txt: ({ cues }) => cues.map(({ text }) => `${flat(text)}\n`),
	// The cues as they are now; and in `drafts` what the model said, with who drafted each token.
	json: ({ cues, segments, figures }) => {
		const now = cues.map(({ start, end, text }, id) => ({ id, start, end, text: flat(text) }));
		return [JSON.stringify({ text: now.map(({ text }) => text).join(" "), segments: now, drafts: segments, figures }, null, 1), "\n"];
	},
};

export const textOf = (item) => FORMATS.txt(item).join("");

// Give the file to the browser's downloads; it is made here, and goes nowhere else.
export function download(item, format) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(new Blob(FORMATS[format](item)));
	link.download = `${item.name.replace(/\.\w{1,5}$/, "")}.${format}`;
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

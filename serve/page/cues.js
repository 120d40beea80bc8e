// Subtitles: pieces of text with their times, and the files made of them. Nothing here touches the page.

// Of a transcription: a cue for each segment. `words` are there where the times of words are known.
export function cuesOf(segments) {
  return segments.map(({ start, end, text, words }) => ({ start, end, text: text.trim(), words }));
}

// "00:01:02,345", or with another mark in front of the thousandths.
export function clock(seconds, mark = ",") {
  const ms = Math.round(1000 * seconds);
  const part = (value, digits) => String(Math.floor(value)).padStart(digits, "0");
  return `${part(ms / 3600000, 2)}:${part((ms / 60000) % 60, 2)}:${part((ms / 1000) % 60, 2)}${mark}${part(ms % 1000, 3)}`;
}

// A blank line would end a cue too early.
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean).join("\n");

const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

export const FORMATS = {
  srt: {
    type: "application/x-subrip",
    write: ({ cues }) =>
      cues
        .map(({ start, end, text }, i) =>
          `${i + 1}\n${clock(start)} --> ${clock(end)}\n${lines(text).replaceAll("-->", "->")}\n\n`)
        .join(""),
  },
  vtt: {
    type: "text/vtt",
    write: ({ cues }) =>
      `WEBVTT\n\n${cues
        .map(({ start, end, text }) => `${clock(start, ".")} --> ${clock(end, ".")}\n${escaped(lines(text))}\n\n`)
        .join("")}`,
  },
  txt: { type: "text/plain", write: ({ cues }) => cues.map(({ text }) => `${lines(text).replaceAll("\n", " ")}\n`).join("") },
  json: { type: "application/json", write: (item) => `${JSON.stringify(asValue(item), null, 1)}\n` },
};

// The cues as they are now; and in `drafts` what the model said, with who drafted each token.
function asValue({ cues, segments, figures }) {
  return {
    text: cues.map(({ text }) => text.replaceAll("\n", " ")).join(" "),
    segments: cues.map(({ start, end, text }, id) => ({ id, start, end, text })),
    drafts: segments,
    figures,
  };
}

// Give the file to the browser's downloads; it is made here, and goes nowhere else.
export function download(item, format) {
  const { type, write } = FORMATS[format];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([write(item)], { type }));
  link.download = `${item.name.replace(/\.\w{1,5}$/, "")}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

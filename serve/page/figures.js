// The figures of a transcription as tiles.

import { element } from "./tokens.js";
import { number, say } from "./words.js";

// `plain` is the run without drafter, if there was one.
export function showFigures(place, item) {
  place.replaceChildren(realTime(item.figures), perPass(item), encoder(item.figures), speedUp(item.figures, item.plain));
}

function tile(name, value, note) {
  const made = element("div", "tile");
  made.append(element("span", "tile-name", say(name)), element("strong", "", value ?? "–"), element("small", "", note ?? ""));
  return made;
}

function realTime(figures) {
  const factor = figures?.real_time_factor;
  if (!factor) return tile("realTime", null, say("unknown"));
  const times = number(1 / factor, factor > 0.1 ? 1 : 0);
  return tile("realTime", number(factor, 3), say("realTimeNote", { times }));
}

// Live text has no figures of the server: its tokens and passes are counted.
function perPass({ figures, segments }) {
  const tokens = figures?.tokens ?? segments.reduce((sum, segment) => sum + segment.tokens.length, 0);
  const passes = figures?.passes ?? segments.reduce((sum, segment) => sum + segment.passes.length, 0);
  if (!passes) return tile("perPass");
  return tile("perPass", number(tokens / passes, 2), say("perPassNote", { tokens: number(tokens), passes: number(passes) }));
}

function encoder(figures) {
  if (!figures?.encode_s) return tile("encoder", null, say("unknown"));
  const whole = figures.encode_s + figures.decode_s;
  const made = tile("encoder", `${number((100 * figures.encode_s) / whole)} %`, say("encoderNote", { seconds: number(whole, 2) }));
  const bar = element("div", "bar-of");
  bar.style.setProperty("--share", figures.encode_s / whole);
  made.append(bar);
  return made;
}

function speedUp(figures, plain) {
  const seconds = plain?.figures?.decode_s ?? figures?.plain_decode_s;
  if (!seconds || !figures?.decode_s) return tile("speedUp", null, say("speedUpNone"));
  const factor = number(seconds / figures.decode_s, 2);
  return tile("speedUp", `${factor} ×`, say(plain ? "speedUpRun" : "speedUpPrice"));
}

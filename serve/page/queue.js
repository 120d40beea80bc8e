// Recordings in a queue, one decoded after the other, and those of earlier days.

import { cueOf, cuesOf } from "./cues.js";
import { fileOf, forget, forgetAll, keep, kept } from "./history.js";
import { transcribe } from "./server.js";
import { element, say } from "./words.js";

export const errorText = (error) => say(error.code) ?? say(error.name) ?? error.message;

export class Queue {
	// now, before: lists; settings(): those of now; onShow(item): it was chosen; onStart(item); onCue(item, cue): another one;
	// onChange(item): its state; onGone(item, next).
	constructor(parts) {
		Object.assign(this, parts, { items: [], lastId: 0 });
	}

	// `id` is also when it was added, in ms.
	add(name, file, state) {
		this.lastId = Math.max(this.lastId + 1, Date.now());
		const item = { id: this.lastId, name, file, segments: [], drafters: [], cues: [] };
		return this.list(item, state, this.now);
	}

	list(item, state, list) {
		Object.assign(item, { past: [], future: [], row: element("li"), button: element("button", "item"), remove: element("button", "remove", "×") });
		item.button.onclick = () => this.onShow(item);
		item.remove.onclick = () => this.remove(item)?.button.focus();
		item.row.append(item.button, item.remove);
		list.append(item.row);
		this.items.push(item);
		this.setState(item, state);
		return item;
	}

	async loadHistory() {
		for (const item of await kept()) this.list(item, "kept", this.before);
	}

	addFiles(files) {
		const added = [...files].map((file) => this.add(file.name, file, "waiting"));
		this.work();
		return added;
	}

	// One after the other: the server would only have them wait for each other.
	async work() {
		if (this.isBusy) return;
		this.isBusy = true;
		for (let item; (item = this.items.find(({ state }) => state === "waiting")); ) await this.run(item);
		this.isBusy = false;
	}

	async run(item) {
		const settings = this.settings();
		const { model, language } = settings;
		Object.assign(item, { model, language, segments: [], cues: [], past: [], future: [], figures: null, error: null, startedMs: null });
		item.stopper = new AbortController();
		this.setState(item, "working");
		this.onStart(item);
		try {
			for await (const event of transcribe(item.file, settings, item.stopper.signal)) this.take(item, event);
			this.finish(item);
		} catch (error) {
			this.fail(item, error);
		}
	}

	take(item, event) {
		if (event.type === "begun") item.startedMs = performance.now();
		if (event.type === "specedge.figures") item.figures = event;
		if (event.type !== "specedge.segment") return;
		const { drafters, language, duration } = event;
		Object.assign(item, { drafters, language, duration });
		item.segments.push(event);
		item.cues.push(cueOf(event));
		this.onCue(item, item.cues.at(-1));
		this.setState(item, item.state);
	}

	// A recording has its cues at its end only.
	finish(item) {
		item.cues = cuesOf(item.segments);
		this.setState(item, "done");
		if (item.cues.length) keep(item, true);
	}

	fail(item, error) {
		const isStopped = error.name === "AbortError";
		item.error = isStopped ? null : errorText(error);
		this.setState(item, isStopped ? "stopped" : "failed");
	}

	runAgain(item) {
		this.now.append(item.row);
		this.setState(item, "waiting");
		this.work();
	}

	// The item that stands in its place now.
	remove(item) {
		item.stopper?.abort();
		item.state = "gone";
		const place = this.items.indexOf(item);
		this.items.splice(place, 1);
		item.row.remove();
		forget(item);
		const next = this.items[place] ?? this.items[place - 1];
		this.onGone(item, next);
		return next;
	}

	clearHistory() {
		for (const item of this.items.filter(({ state }) => state === "kept")) this.remove(item);
		forgetAll();
	}

	setState(item, state) {
		item.state = state;
		const share = progress(item)?.share;
		const note = state === "kept" ? new Date(item.id).toLocaleDateString() : share ? `${Math.round(100 * share)} %` : say(state);
		item.button.replaceChildren(element("span", "", item.name), element("small", state, note));
		item.remove.setAttribute("aria-label", say("remove", item));
		item.remove.hidden = state === "recording";
		this.onChange(item);
	}
}

// How much of an item in work is done, from 0 to 1, and the seconds left; undefined before the first text.
export function progress({ state, cues, duration, startedMs }) {
	if (state !== "working" || !duration || !cues.length) return undefined;
	const share = Math.min(cues.at(-1).end / duration, 1);
	return { share, left_s: (((performance.now() - startedMs) / 1000) * (1 - share)) / share };
}

// The sound of an item; undefined where it was not kept.
export async function soundOf(item) {
	return (item.file ??= await fileOf(item).catch(() => undefined));
}

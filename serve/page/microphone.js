// What is spoken, as an item whose text grows while it records.

import { Recorder } from "./recorder.js";
import { errorText } from "./queue.js";
import { say } from "./words.js";

export class Microphone {
	// button, text, level, clock, advice: parts of the page; onTurn(item, turn, isSame): text; onTentative(item, text).
	constructor(parts) {
		Object.assign(this, parts);
		this.button.onclick = () => this.press();
	}

	press() {
		this.button.disabled = Boolean(this.recorder);
		this.advice.textContent = "";
		if (this.recorder) return this.recorder.stop();
		const settings = this.queue.settings();
		const { model, language } = settings;
		this.item = this.queue.add(say("recordingName", { time: new Date().toLocaleTimeString() }), null, "recording");
		Object.assign(this.item, { model, language });
		this.recorder = new Recorder({
			settings,
			onEvent: (event) => this.take(event),
			onLevel: (level) => this.showLevel(level),
			onEnd: (error) => this.end(error),
		});
		this.queue.onShow(this.item);
		this.show();
		this.recorder.start();
	}

	show() {
		this.button.classList.toggle("is-on", Boolean(this.recorder));
		this.text.textContent = say(this.recorder ? "stopRecording" : "record");
		this.level.hidden = !this.recorder;
	}

	showLevel(level) {
		this.level.firstChild.value = Math.sqrt(level);
		this.clock.textContent = `${Math.floor(this.recorder.seconds)} s`;
	}

	// A turn, which a pause ends, is a segment; what is confirmed of it comes in parts.
	take(event) {
		const { item } = this;
		const turn = item.segments.at(-1);
		const isSame = turn?.item === event.item_id;
		if (event.type === "input_audio_buffer.speech_started") item.start = event.audio_start_ms / 1000;
		if (event.type === "input_audio_buffer.speech_stopped" && isSame) turn.end = event.audio_end_ms / 1000;
		if (event.type === "specedge.tentative") this.onTentative(item, event.text);
		if (event.type !== "specedge.confirmed") return;
		const { item_id, text, tokens, drafters } = event;
		item.drafters = drafters;
		const end = this.recorder.seconds;
		if (isSame) Object.assign(turn, { end, text: turn.text + text, tokens: [...turn.tokens, ...tokens] });
		else item.segments.push({ item: item_id, start: item.start ?? 0, end, text, tokens });
		this.onTurn(item, item.segments.at(-1), isSame);
	}

	// Where nothing was heard, there is advice in place of an item.
	end(error) {
		const { item, recorder } = this;
		this.recorder = null;
		this.button.disabled = false;
		this.show();
		this.onTentative(item, "");
		if (!recorder.chunks.length) {
			this.advice.textContent = error ? errorText(error) : "";
			return this.queue.remove(item);
		}
		item.file = recorder.file(`${item.name}.wav`);
		item.duration = recorder.seconds;
		this.queue.finish(item);
		if (error) this.queue.fail(item, error);
	}
}

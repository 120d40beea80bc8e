// The microphone: its samples go to /v1/realtime while it records, and are kept as a WAV file.

import { openRealtime, ServerError } from "./server.js";

const RATE_HZ = 16000;
// The model hears what the microphone hears.
const AUDIO = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };

export class Recorder {
	// onEvent: called with each event of the session; onLevel: with 0 to 1, ten times a second; onEnd: without error, or
	// with the one that ended it.
	constructor({ settings, onEvent, onLevel, onEnd }) {
		Object.assign(this, { settings, onEvent, onLevel, onEnd, chunks: [], waiting: [] });
	}

	get seconds() {
		return this.chunks.reduce((sum, chunk) => sum + chunk.length, 0) / RATE_HZ;
	}

	start() {
		this.begin().catch((error) => this.end(error));
	}

	async begin() {
		if (!navigator.mediaDevices) throw new ServerError({ code: "no_microphone" });
		this.stream = await navigator.mediaDevices.getUserMedia({ audio: AUDIO });
		this.connect();
		// Firefox takes a microphone only at the rate of the device; the worklet makes 16 kHz of it.
		await this.listen({ sampleRate: RATE_HZ }).catch(() => this.listen());
	}

	async listen(options) {
		this.context = new AudioContext(options);
		const source = this.context.createMediaStreamSource(this.stream);
		await this.context.audioWorklet.addModule("worklet.js");
		this.worklet = new AudioWorkletNode(this.context, "microphone");
		this.worklet.port.onmessage = ({ data }) => (data.isLast ? this.commit() : this.hear(data));
		source.connect(this.worklet);
		if (this.hasEnded) this.context.close();
	}

	hear({ samples, level }) {
		if (this.hasEnded) return;
		this.chunks.push(samples);
		this.onLevel(level);
		const bytes = String.fromCharCode(...new Uint8Array(samples.buffer));
		this.send("input_audio_buffer.append", { audio: btoa(bytes) });
	}

	connect() {
		const { model, language, drafter } = this.settings;
		const input = {
			format: { type: "audio/pcm", rate: RATE_HZ },
			transcription: { model, language: language || null },
		};
		this.socket = openRealtime();
		this.socket.onopen = () => this.waiting.forEach((text) => this.socket.send(text));
		this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
		this.socket.onclose = () => this.end(new ServerError({ code: "lost_line" }));
		this.send("session.update", { session: { type: "transcription", audio: { input }, specedge: { drafter } } });
	}

	take(event) {
		if (event.type === "input_audio_buffer.cleared") this.end();
		else if (event.type !== "error") this.onEvent(event);
		else if (event.error.code !== "input_audio_buffer_commit_empty") this.end(new ServerError(event.error));
	}

	// What is said before the line is open waits.
	send(type, fields) {
		const text = JSON.stringify({ type, ...fields });
		if (this.socket.readyState === WebSocket.OPEN) this.socket.send(text);
		else this.waiting.push(text);
	}

	// Stop listening; the session goes on until everything that was said is text.
	stop() {
		this.stream.getTracks().forEach((track) => track.stop());
		this.worklet.port.postMessage("flush");
	}

	// The server answers in order: that it has cleared its buffer says that the commit is done.
	commit() {
		this.send("input_audio_buffer.commit");
		this.send("input_audio_buffer.clear");
	}

	end(error) {
		if (this.hasEnded) return;
		this.hasEnded = true;
		this.stream?.getTracks().forEach((track) => track.stop());
		this.context?.close();
		this.socket?.close();
		this.onEnd(error);
	}

	file(name) {
		return new File([wavHeader(this.seconds * RATE_HZ), ...this.chunks], name, { type: "audio/wav" });
	}
}

// Of 16-bit mono samples, which follow it.
function wavHeader(nSamples) {
	const nBytes = 2 * nSamples;
	const form = [0x20746d66, 16, 0x00010001, RATE_HZ, 2 * RATE_HZ, 0x00100002]; // "fmt ": PCM, 1 channel, 2 bytes, 16 bits
	return new Uint32Array([0x46464952, 36 + nBytes, 0x45564157, ...form, 0x61746164, nBytes]); // "RIFF", "WAVE", "data"
}

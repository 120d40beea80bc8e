// Runs in the audio thread: gives the page 16-bit samples at 16 kHz, a tenth of a second at a time, and how loud they are.

const RATE_HZ = 16000;
const N_CHUNK = RATE_HZ / 10;

class Microphone extends AudioWorkletProcessor {
	constructor() {
		super();
		// Samples of the context for each of ours: 1 where the browser let us choose the rate.
		this.ratio = sampleRate / RATE_HZ;
		Object.assign(this, { chunk: new Int16Array(N_CHUNK), n: 0, sum: 0, weight: 0, loudest: 0 });
		this.port.onmessage = () => {
			this.send();
			this.port.postMessage({ isLast: true });
		};
	}

	process([[channel]]) {
		for (const sample of channel ?? []) this.hear(sample);
		return true;
	}

	// One of our samples is the mean of the context's samples that it covers, the last of them perhaps in part.
	hear(sample) {
		const part = Math.min(1, this.ratio - this.weight);
		this.sum += sample * part;
		this.weight += part;
		if (this.weight < this.ratio - 1e-9) return;
		this.add(this.sum / this.ratio);
		this.sum = sample * (1 - part);
		this.weight = 1 - part;
	}

	add(value) {
		const clipped = Math.max(-1, Math.min(1, value));
		this.loudest = Math.max(this.loudest, Math.abs(clipped));
		this.chunk[this.n++] = Math.round(clipped * 32767);
		if (this.n === N_CHUNK) this.send();
	}

	send() {
		if (this.n) this.port.postMessage({ samples: this.chunk.slice(0, this.n), level: this.loudest });
		this.n = this.loudest = 0;
	}
}

registerProcessor("microphone", Microphone);

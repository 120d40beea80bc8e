// The sound of a recording, with the cues on it, whose edges can be dragged.

const PEAKS_S = 100; // a second
const RATE_HZ = 8000;
const NEAR_PX = 8;

export class Waveform {
	// onSelect(at), onTimes(at, { start or end }): what was done to a cue; onTime(time): where the player is.
	constructor(parts) {
		Object.assign(this, parts, { cues: [], peaks: [], at: 0, from: 0, span: 12 });
		const { canvas, player } = this;
		canvas.onpointerdown = (event) => this.grab(event);
		canvas.onpointermove = (event) => this.move(event);
		canvas.onpointerup = () => this.drop();
		player.addEventListener("play", () => this.follow());
		player.addEventListener("seeked", () => this.tellTime());
		new ResizeObserver(() => this.draw()).observe(canvas);
	}

	// The player has the same file; one that the browser cannot decode, or none, is drawn as silence.
	async open(file) {
		if (this.file === file) return;
		Object.assign(this, { file, peaks: [], from: 0 });
		const audio = file && (await new OfflineAudioContext(1, 1, RATE_HZ).decodeAudioData(await file.arrayBuffer()).catch(() => null));
		if (audio && this.file === file) this.peaks = peaksOf(audio.getChannelData(0));
		this.draw();
	}

	get time() {
		return this.player.currentTime;
	}

	show(cues, at) {
		const isOther = at !== this.at;
		Object.assign(this, { cues, at });
		if (isOther && this.player.paused) this.seek(cues[at].start);
		this.tellTime();
	}

	play() {
		this.player[this.player.paused ? "play" : "pause"]();
	}

	seek(time) {
		this.player.currentTime = Math.max(0, time);
	}

	follow() {
		this.tellTime();
		if (!this.player.paused) requestAnimationFrame(() => this.follow());
	}

	tellTime() {
		if (this.time < this.from || this.time > this.from + this.span) this.from = Math.max(0, this.time - this.span / 6);
		this.onTime(this.time);
		this.draw();
	}

	// ---- dragging ----

	timeOf(event) {
		return this.from + (event.offsetX / this.canvas.clientWidth) * this.span;
	}

	// The edge of a cue under the pointer: the selected one's first, as edges may touch.
	edge(time) {
		const near = (this.span * NEAR_PX) / this.canvas.clientWidth;
		const edges = [this.at, ...this.cues.keys()].flatMap((at) => [{ at, name: "start" }, { at, name: "end" }]);
		return edges.find(({ at, name }) => Math.abs(this.cues[at][name] - time) <= near);
	}

	grab(event) {
		const time = this.timeOf(event);
		this.held = this.edge(time);
		const at = this.held?.at ?? this.cues.findIndex(({ start, end }) => start <= time && time < end);
		this.onSelect(at);
		if (this.held) this.canvas.setPointerCapture(event.pointerId);
		else this.seek(time);
	}

	move(event) {
		const time = this.timeOf(event);
		this.canvas.style.cursor = this.edge(time) ? "ew-resize" : "";
		if (!this.held) return;
		const { at, name } = this.held;
		this.held.time = time;
		this.cues = this.cues.with(at, { ...this.cues[at], [name]: time });
		this.draw();
	}

	drop() {
		const { at, name, time } = this.held ?? {};
		this.held = null;
		if (time === undefined) return;
		this.onTimes(at, { [name]: time });
		this.onSelect(at);
	}

	// ---- drawing ----

	draw() {
		const { canvas } = this;
		const [width, height] = [canvas.clientWidth, canvas.clientHeight];
		canvas.width = width * devicePixelRatio;
		canvas.height = height * devicePixelRatio;
		const pen = canvas.getContext("2d");
		pen.scale(devicePixelRatio, devicePixelRatio);
		const x = (time) => ((time - this.from) / this.span) * width;
		this.drawCues(pen, x, height);
		this.drawSound(pen, width, height);
		pen.fillStyle = this.colour("red");
		pen.fillRect(x(this.time), 0, 2, height);
	}

	colour(name) {
		return getComputedStyle(this.canvas).getPropertyValue(`--${name}`);
	}

	drawCues(pen, x, height) {
		this.cues.forEach(({ start, end }, at) => {
			pen.fillStyle = this.colour(at === this.at ? "blue-tint" : "line");
			pen.fillRect(x(start), 0, x(end) - x(start), height);
			pen.fillStyle = this.colour(at === this.at ? "accent" : "edge");
			for (const time of [start, end]) pen.fillRect(x(time) - 1, 0, 2, height);
		});
	}

	drawSound(pen, width, height) {
		pen.fillStyle = this.colour("ink");
		for (let column = 0; column < width; column++) {
			const peak = this.peaks[Math.floor((this.from + (column / width) * this.span) * PEAKS_S)] ?? 0;
			pen.fillRect(column, (height * (1 - peak)) / 2, 1, Math.max(1, height * peak));
		}
	}
}

// The loudest sample of each hundredth of a second, the loudest of all being 1.
function peaksOf(samples) {
	const n = RATE_HZ / PEAKS_S;
	const peaks = new Float32Array(Math.ceil(samples.length / n));
	samples.forEach((sample, i) => (peaks[Math.floor(i / n)] = Math.max(peaks[Math.floor(i / n)], Math.abs(sample))));
	const most = peaks.reduce((a, b) => Math.max(a, b), 1e-6);
	return peaks.map((peak) => peak / most);
}

// The microphone: its samples go to /v1/realtime while it records, and are kept as a WAV file.

import { openRealtime, ServerError } from "./server.js";

const RATE_HZ = 16000;
// The model hears what the microphone hears.
const AUDIO = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };

export class Recorder {
  // onEvent: called with each event of the session; onLevel: with 0 to 1, ten times a second; onEnd: without error, or
  // with the one that ended it.
  constructor({ settings, onEvent, onLevel, onEnd }) {
    Object.assign(this, { settings, onEvent, onLevel, onEnd });
    this.chunks = [];
    this.nSent = 0;
    this.isOpen = false;
    this.hasEnded = false;
  }

  get seconds() {
    return this.chunks.reduce((sum, chunk) => sum + chunk.length, 0) / RATE_HZ;
  }

  async start() {
    if (!navigator.mediaDevices) throw new ServerError({ code: "no_microphone" });
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: AUDIO });
    this.context = new AudioContext({ sampleRate: RATE_HZ });
    try {
      await this.listen();
    } catch {
      // Firefox takes a microphone only at the rate of the device; the worklet makes 16 kHz of it.
      this.context.close();
      this.context = new AudioContext();
      await this.listen();
    }
    this.connect();
  }

  async listen() {
    const source = this.context.createMediaStreamSource(this.stream);
    await this.context.audioWorklet.addModule("worklet.js");
    this.worklet = new AudioWorkletNode(this.context, "microphone");
    this.worklet.port.onmessage = ({ data }) => (data.isLast ? this.commit() : this.hear(data));
    source.connect(this.worklet);
    await this.context.resume();
  }

  hear({ samples, level }) {
    this.chunks.push(samples);
    this.onLevel(level);
    this.sendWaiting();
  }

  // What was said before the session was open waits in `chunks`.
  sendWaiting() {
    if (!this.isOpen) return;
    for (; this.nSent < this.chunks.length; this.nSent++) {
      this.send("input_audio_buffer.append", { audio: base64(this.chunks[this.nSent]) });
    }
  }

  connect() {
    this.socket = openRealtime();
    this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.socket.onclose = () => this.end(new ServerError({ code: "lost_line" }));
  }

  take(event) {
    if (event.type === "session.created") {
      this.update();
      this.isOpen = true;
      this.sendWaiting();
      if (this.mustCommit) this.commit();
    } else if (event.type === "session.updated" && this.hasCommitted) {
      this.end();
    } else if (event.type !== "error") {
      this.onEvent(event);
    } else if (event.error.code !== "input_audio_buffer_commit_empty") {
      this.end(new ServerError(event.error));
    }
  }

  update() {
    const { model, language, drafter } = this.settings;
    const input = {
      format: { type: "audio/pcm", rate: RATE_HZ },
      transcription: { model, language: language || null },
      turn_detection: { type: "server_vad", silence_duration_ms: 1000 },
    };
    this.send("session.update", { session: { type: "transcription", audio: { input }, specedge: { drafter } } });
  }

  send(type, fields = {}) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type, ...fields }));
  }

  // Stop listening; the session goes on until everything that was said is text.
  stop() {
    this.stream.getTracks().forEach((track) => track.stop());
    this.worklet.port.postMessage("flush");
  }

  commit() {
    this.context.close();
    if (!this.isOpen) {
      this.mustCommit = true;
      return;
    }
    this.send("input_audio_buffer.commit");
    // The server answers in order: `session.updated` says that the commit is done.
    this.hasCommitted = true;
    this.update();
  }

  end(error) {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.stream.getTracks().forEach((track) => track.stop());
    if (this.context.state !== "closed") this.context.close();
    this.socket.close();
    this.onEnd(error);
  }

  file(name) {
    return new File([wavHeader(this.seconds * RATE_HZ), ...this.chunks], name, { type: "audio/wav" });
  }
}

function base64(samples) {
  return btoa(String.fromCharCode(...new Uint8Array(samples.buffer)));
}

// Of 16-bit mono samples, which follow it.
function wavHeader(nSamples) {
  const header = new DataView(new ArrayBuffer(44));
  const nBytes = 2 * nSamples;
  const text = (at, letters) => [...letters].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, 36 + nBytes, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true); // bytes of this part
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 1, true); // channels
  header.setUint32(24, RATE_HZ, true);
  header.setUint32(28, 2 * RATE_HZ, true); // bytes a second
  header.setUint16(32, 2, true); // bytes a frame
  header.setUint16(34, 16, true); // bits a sample
  text(36, "data");
  header.setUint32(40, nBytes, true);
  return header;
}

"""SpeechRecognition's recognize_faster_whisper, with a language and without."""

import sys

import speech_recognition

with speech_recognition.AudioFile(sys.argv[1]) as source:
    audio = speech_recognition.Recognizer().record(source)
for options in ({"language": "en"}, {}):
    print("text:", speech_recognition.Recognizer().recognize_faster_whisper(audio, model="base", **options))

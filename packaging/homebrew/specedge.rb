# For a tap: brew install --build-from-source specedge.rb. A release puts the sdist's sha256 in.
class Specedge < Formula
  include Language::Python::Virtualenv

  desc "Speech-to-text with Whisper, fast by speculation that never changes the text"
  homepage "https://github.com/OWNER/specedge"
  url "https://github.com/OWNER/specedge/releases/download/v0.1.0/specedge-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  depends_on "python@3.13"

  # ONNX Runtime and soxr are wheels: Homebrew's own policy wants them built, a tap does not.
  def install
    python = Formula["python@3.13"].opt_bin/"python3.13"
    system python, "-m", "venv", libexec
    system libexec/"bin/pip", "install", "--no-cache-dir", "#{buildpath}[serve]"
    bin.install_symlink libexec/"bin/specedge"
    generate_completions_from_executable(bin/"specedge", "completion", shells: [:bash, :zsh, :fish])
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/specedge --version")
    assert_match '"onnxruntime"', shell_output("#{bin}/specedge --version --json")
  end
end

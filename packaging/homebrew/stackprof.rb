# There is no release yet: `brew install --HEAD` builds the newest state of the repository that
# HOMEBREW_STACKPROF_GIT names (docs/installation.md). A release adds `url` and `sha256`.
class Stackprof < Formula
  desc "Native sampling profiler that makes flame graphs you can believe"
  license any_of: ["Apache-2.0", "MIT"]
  head ENV.fetch("HOMEBREW_STACKPROF_GIT", "https://stackprof.invalid/set-HOMEBREW_STACKPROF_GIT"), using: :git

  depends_on "rust" => :build

  def install
    system "cargo", "install", "--profile", "dist", *std_cargo_args
    man1.install Dir["packaging/man/*.1"]
    doc.install "packaging/third-party-licenses.txt"
    generate_completions_from_executable(bin/"stackprof", "completions", shells: [:bash, :zsh, :fish])
  end

  # A recording needs rights that the sandbox of a test does not have.
  test do
    assert_match version.to_s, shell_output("#{bin}/stackprof --version") unless head?
    (testpath/"a.folded").write "program;main;work 10\n"
    system bin/"stackprof", "render", "a.folded", "-o", "a.svg"
    assert_match "work", (testpath/"a.svg").read
  end
end

//! Completion scripts and man pages.

use crate::sandbox::Sandbox;

#[test]
fn completions_for_every_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = sandbox.strait(&format!("completions {shell}")).ok();
        assert!(script.contains("explain-analyze"), "{shell}");
    }
    sandbox.strait("completions tcsh").refused(&["tcsh"]);
}

#[test]
fn man_pages() {
    let sandbox = Sandbox::new();
    assert!(sandbox.strait("man").ok().contains(".TH strait 1"));
    sandbox.strait("man --out pages/man1").ok();
    for page in ["strait", "strait-join", "strait-demo", "strait-generate-tpch"] {
        let text = sandbox.read(&format!("pages/man1/{page}.1"));
        assert!(text.contains("Examples"), "{page}");
    }
}

//! The texts of the library.

use std::path::Path;

/// Flags that do not belong to the command: of the CUDA compiler and of Docker.
const OF_OTHERS: [&str; 2] = ["--gpu-architecture", "--gpus"];

/// Returns the lines of code below a folder that have a flag, with their files.
fn with_flags(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the library") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            // Only the benchmarks see the errors of this hidden module.
            if !path.ends_with("internal") {
                with_flags(&path, found);
            }
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let is_flag = |(at, _): (usize, &str)| {
                let flag = &line[at..];
                let named = flag[2..].starts_with(|c: char| c.is_ascii_lowercase());
                named && !OF_OTHERS.iter().any(|other| flag.starts_with(other))
            };
            if line.match_indices("--").any(is_flag) {
                found.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
}

/// Programs that use the library do not have the flags of the command.
#[test]
fn messages_name_no_flags_of_the_command() {
    let mut found = Vec::new();
    with_flags(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

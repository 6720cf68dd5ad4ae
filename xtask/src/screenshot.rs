//! `cargo xtask screenshot`: the picture of the report that README.md shows.
//!
//! The page is made from the kept results, opened in headless Chromium, and reduced to a palette by
//! pngquant. A picture above [`BYTES_MAX`] is refused, since every clone has it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step;
use crate::workspace::Workspace;

const PICTURE: &str = "docs/images/report.png";
const BYTES_MAX: u64 = 150 << 10;
const SIZE: &str = "--window-size=1120,900";

/// Rewrites the picture.
pub fn run(workspace: &Workspace) -> Result<()> {
    step::heading("report");
    let out = workspace.target_dir()?.join("report");
    let program = [
        "run",
        "--release",
        "--locked",
        "--package",
        "extant-bench",
        "--",
    ];
    step::run(
        workspace
            .cargo(&program)
            .args(["report", "--out"])
            .arg(&out),
    )?;

    step::heading(PICTURE);
    let (screen, picture) = (out.join("report.png"), workspace.root().join(PICTURE));
    let profile = out.join("profile");
    step::run(
        Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args([SIZE, "--blink-settings=preferredColorScheme=1"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("--screenshot={}", screen.display()))
            .arg(format!("file://{}", out.join("report.html").display())),
    )?;
    fs::remove_dir_all(&profile).with_context(|| format!("{}", profile.display()))?;
    let directory = picture.parent().context("a picture without a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    step::run(
        Command::new("pngquant")
            .args([
                "--force",
                "--strip",
                "--speed=1",
                "--nofs",
                "64",
                "--output",
            ])
            .args([&picture, &screen]),
    )?;
    let bytes = fs::metadata(&picture)?.len();
    ensure!(
        bytes <= BYTES_MAX,
        "{PICTURE} has {bytes} bytes, more than {BYTES_MAX}; choose a smaller window"
    );
    Ok(())
}

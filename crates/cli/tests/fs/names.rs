//! `mkdir`, `mv`, `ln`, `chmod`, `chown`, `rm` change an image as the programs of the same names
//! change a mount of the kernel.

use std::path::Path;
use std::process::Command;

use extant_testkit::{command, require, requires};

use crate::image::{Image, Owners, describe};

/// Lines of commands, with `/` for the root of the file system.
const SCRIPT: &[&str] = &[
    "mkdir /one",
    "mkdir -p /one/two/three",
    "mkdir -p /one/two",
    "mkdir -m 0700 /private",
    "mkdir /one",
    "mkdir /missing/below",
    "ln -s ../one /private/link",
    "ln -s two /one/relative",
    "ln -s one/two /absolute",
    "mkdir /one/relative/through",
    "mv /one/two/three /one/four",
    "mv -T /one/four /one/two",
    "mv /one/four /absolute",
    "mv /one /one/two",
    "mv /nothing /somewhere",
    "mv /private/link /one/relative /one/two/through",
    "ln /one/two/through/relative /hard",
    "ln /private /hardlink",
    "ln -s changed /hard",
    "ln -sf changed /hard",
    "chmod 1777 /private",
    "chmod u=rwx,g=rx,o= /one",
    "chmod -R a-w,g+s /one",
    "chmod a+t,u-s /private",
    "chmod 755 /missing",
    "chown 7:8 /private",
    "chown -R 100:200 /one",
    "chown :300 /one/two",
    "chown 5 /missing",
    "rm /hard",
    "rm /hard",
    "rm -f /hard",
    "rm /private",
    "rm /absolute",
    "rm -r /one/two/through",
    "rm -rf /missing /one/two",
    "mkdir /last",
];

#[test]
fn names_and_permissions_follow_the_kernel() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck")
    );
    let (ours, kernels) = (Image::new(32), Image::new(32));
    for line in SCRIPT {
        let words: Vec<&str> = line.split(' ').collect();
        let first_path = words
            .iter()
            .position(|word| word.contains('/') || word.contains(':'));
        // IMAGE comes behind the options, before everything else.
        let mut place = 1;
        while words[place].starts_with('-') {
            place += if words[place] == "-m" { 2 } else { 1 };
        }
        assert!(first_path.is_some());
        let mut with_image = words.clone();
        with_image.insert(place, "IMAGE");
        let answer = ours.fs(&with_image);

        let mounted = kernels.mount();
        let code = kernel(&words, &mounted.place).status().unwrap().code();
        drop(mounted);
        assert_eq!(
            answer.code == Some(0),
            code == Some(0),
            "`{line}`: {answer}"
        );

        let image_of = |image: &Image| -> Vec<String> {
            let mounted = image.mount();
            let lines = describe(&mounted.place, Owners::Compared);
            // Times differ: the commands did not run at the same moment.
            lines.iter().map(|line| without_times(line)).collect()
        };
        assert_eq!(image_of(&ours), image_of(&kernels), "after `{line}`");
    }
    ours.assert_clean();
}

/// The same by the program of that name, on a mounted file system.
fn kernel(words: &[&str], root: &Path) -> Command {
    let mut command = command::tool(words[0]);
    let root = root.display().to_string();
    let is_symlink = words.contains(&"-s") || words.contains(&"-sf");
    let mut paths = 0;
    for word in &words[1..] {
        let is_path = word.starts_with('/');
        paths += u32::from(!word.starts_with('-'));
        // The target of a symbolic link is no path of this machine.
        if is_path && !(is_symlink && paths == 1) {
            command.arg(format!("{root}{word}"))
        } else {
            command.arg(word)
        };
    }
    command
        .env("LC_ALL", "C")
        .stderr(std::process::Stdio::null());
    command
}

fn without_times(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let kept = words.iter().filter(|word| {
        let is_time = word.split_once('.').is_some_and(|(seconds, fraction)| {
            seconds.parse::<i64>().is_ok() && fraction.len() == 9
        });
        !is_time
    });
    kept.copied().collect::<Vec<_>>().join(" ")
}

#[test]
fn exchange_gives_each_the_others_name() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(16);
    image
        .fs(&["mkdir", "-p", "IMAGE", "/a/x", "/b/y"])
        .success();
    image
        .fs(&["mv", "--exchange", "IMAGE", "/a", "/b"])
        .success();
    assert_eq!(image.fs(&["ls", "IMAGE", "/a"]).success().stdout, "y\n");
    image.fs(&["mv", "-n", "IMAGE", "/a/y", "/b/x"]).success();
    image
        .fs(&["mv", "-nT", "IMAGE", "/a", "/b"])
        .refused(4, &["disk.img:/b", "file exists"]);
    // An absolute link leads to the root of the image.
    image.fs(&["ln", "-s", "IMAGE", "/b", "/b/link"]).success();
    assert_eq!(
        image.fs(&["ls", "IMAGE", "/b/link/"]).success().stdout,
        "link\nx\n"
    );
    image
        .fs(&["mv", "IMAGE", "/a", "/b", "/none"])
        .refused(4, &["/none"]);
    image.assert_clean();
}

//! The storage plugin of Proxmox VE, with stand-ins for Proxmox's modules.

use std::path::Path;

use extant_testkit::command::{must, text, tool};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use crate::{contrib, programs};

#[test]
fn plugin_does_what_each_method_promises_with_tainted_arguments() {
    require!(requires::tool("perl"), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 256 << 20);
    let pool = scratch.path().join("vms");
    std::fs::create_dir(&pool).unwrap();
    let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contrib/pve");
    let plugin = contrib("proxmox/ExtantPlugin.pm");
    let perl = || {
        let mut perl = tool("perl");
        perl.arg("-T").arg("-I").arg(&stand_ins);
        perl
    };
    must(perl().arg("-wc").arg(&plugin));
    let mut methods = perl();
    methods.arg(stand_ins.join("methods.pl"));
    methods.arg(&plugin).arg(programs()).arg(&pool);
    let shown = text(&mut methods).unwrap();
    assert!(
        shown.contains("written: 100% of 8388608 bytes\n"),
        "{shown}"
    );
}

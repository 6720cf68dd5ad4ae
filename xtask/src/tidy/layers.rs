//! The layer check: every dependency between our crates is an arrow that points down.
//!
//! The diagram in docs/design.md, "Layers", is generated from the table. A crate may use the crates
//! that its arrows reach, directly or through other crates. The test kit is outside the layers: any
//! crate may use it for its tests, the bench program also to run.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;

/// A crate, and the crates right below it.
pub struct Layer {
    pub package: &'static str,
    pub arrows: &'static [&'static str],
    /// Not a tool of the developers.
    pub is_product: bool,
}

const fn layer(package: &'static str, arrows: &'static [&'static str]) -> Layer {
    Layer {
        package,
        arrows,
        is_product: true,
    }
}

const fn tool(package: &'static str, arrows: &'static [&'static str]) -> Layer {
    Layer {
        package,
        arrows,
        is_product: false,
    }
}

const TEST_KIT: &str = "extant-testkit";
/// The crates that may use the test kit outside tests.
const BENCH: &str = "extant-bench";
const FUZZ: &str = "extant-fuzz";

/// Lowest first.
pub const LAYERS: &[Layer] = &[
    layer("extant-space", &[]),
    layer("extant-sys", &["extant-space"]),
    layer("extant-ondisk", &["extant-space"]),
    layer("extant-blockdev", &["extant-sys"]),
    layer("extant-mballoc", &["extant-space"]),
    layer("extant-jbd2", &["extant-blockdev", "extant-ondisk"]),
    layer("extant-fsck", &["extant-blockdev", "extant-ondisk"]),
    layer("extant-provision", &["extant-sys"]),
    layer("extant-hostfs", &["extant-provision"]),
    layer("extant-nbd", &["extant-blockdev"]),
    layer("extant-rbd", &["extant-blockdev"]),
    layer("extant-ext4", &["extant-mballoc", "extant-jbd2"]),
    layer(
        "extant-image",
        &["extant-nbd", "extant-rbd", "extant-hostfs", "extant-ondisk"],
    ),
    layer("extant-pool", &["extant-ext4", "extant-image"]),
    layer("extant-libvirt", &["extant-pool"]),
    layer("extant-fuse", &["extant-sys"]),
    layer("extant-mount", &["extant-ext4", "extant-fuse"]),
    layer("extant-devicefile", &["extant-blockdev", "extant-fuse"]),
    layer("extant-export", &["extant-nbd"]),
    layer("extant-vhost", &["extant-blockdev"]),
    layer("extant-ublk", &["extant-blockdev"]),
    layer("extant-capi", &["extant-pool"]),
    layer("extant-page", &[]),
    layer(
        "extant",
        &[
            "extant-libvirt",
            "extant-mount",
            "extant-devicefile",
            "extant-export",
            "extant-vhost",
            "extant-ublk",
            "extant-fsck",
            "extant-page",
        ],
    ),
    tool(TEST_KIT, &["extant-space"]),
    tool(
        BENCH,
        &[
            "extant-pool",
            "extant-mount",
            "extant-export",
            "extant-vhost",
            "extant-page",
            TEST_KIT,
        ],
    ),
    tool(
        FUZZ,
        &[
            "extant-libvirt",
            "extant-mount",
            "extant-export",
            "extant-vhost",
            "extant-fsck",
            TEST_KIT,
        ],
    ),
    tool("xtask", &[]),
];

/// Checks `cargo metadata --no-deps`.
pub fn check(metadata: &Value) -> Result<Vec<Finding>> {
    let packages = packages(metadata).context("cargo metadata has another shape than expected")?;
    let own: BTreeSet<_> = packages.iter().map(|(name, _)| *name).collect();
    let mut findings = Vec::new();
    for (user, dependencies) in packages {
        if arrows(user).is_none() {
            let message = "is in no layer; add it to the table in xtask/src/tidy/layers.rs";
            findings.push(Finding::new(user, message));
            continue;
        }
        let dependencies = dependencies
            .into_iter()
            .filter(|(used, _)| own.contains(used));
        findings.extend(dependencies.filter_map(|(used, kind)| judge(user, used, kind)));
    }
    Ok(findings)
}

/// Arrows of the table that no dependency of the crate uses: the diagram would be wrong.
pub fn unused(metadata: &Value) -> Result<Vec<Finding>> {
    let packages = packages(metadata).context("cargo metadata has another shape than expected")?;
    let mut findings = Vec::new();
    for (user, dependencies) in packages {
        for arrow in arrows(user).unwrap_or_default() {
            let is_used = dependencies.contains(&(*arrow, Kind::Normal));
            if !is_used {
                let message = "is in the table of xtask/src/tidy/layers.rs and not a dependency";
                findings.push(Finding::new(format!("{user} -> {arrow}"), message));
            }
        }
    }
    Ok(findings)
}

fn judge(user: &str, used: &str, kind: Kind) -> Option<Finding> {
    let message = if used == TEST_KIT {
        if kind == Kind::Dev || [BENCH, FUZZ].contains(&user) {
            return None;
        }
        "the test kit is for [dev-dependencies]".to_owned()
    } else {
        // Tests may use every lower layer, and turn on a feature of the crate itself.
        if kind == Kind::Dev && rank(used).is_some() && rank(used) <= rank(user) {
            return None;
        }
        let below = below(user);
        if below.contains(used) {
            return None;
        }
        let names: Vec<_> = below.into_iter().collect();
        match names.join(", ").as_str() {
            "" => format!("{user} uses no other crate of ours"),
            names => format!("is no arrow down; {user} may use {names}"),
        }
    };
    Some(Finding::new(format!("{user} -> {used}"), message))
}

fn arrows(package: &str) -> Option<&'static [&'static str]> {
    let found = LAYERS.iter().find(|layer| layer.package == package);
    found.map(|layer| layer.arrows)
}

/// Place in the table, lowest first.
fn rank(package: &str) -> Option<usize> {
    let products = || LAYERS.iter().filter(|layer| layer.is_product);
    products().position(|layer| layer.package == package)
}

/// Crates reachable by the arrows of `package`.
fn below(package: &str) -> BTreeSet<&'static str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<_> = arrows(package).unwrap_or_default().to_vec();
    while let Some(package) = next.pop() {
        if reached.insert(package) {
            next.extend(arrows(package).unwrap_or_default());
        }
    }
    reached
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Dev,
}

type Package<'a> = (&'a str, Vec<(&'a str, Kind)>);

fn packages(metadata: &Value) -> Option<Vec<Package<'_>>> {
    let packages = metadata["packages"].as_array()?;
    packages.iter().map(package).collect()
}

fn package(package: &Value) -> Option<Package<'_>> {
    let dependencies = package["dependencies"].as_array()?.iter();
    let dependencies = dependencies.map(|dependency| {
        let kind = match dependency["kind"].as_str() {
            Some("dev") => Kind::Dev,
            _ => Kind::Normal,
        };
        Some((dependency["name"].as_str()?, kind))
    });
    Some((
        package["name"].as_str()?,
        dependencies.collect::<Option<_>>()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Findings of a workspace in which `user` depends on `used`.
    fn findings(user: &str, used: &str, kind: Option<&str>) -> Vec<String> {
        let metadata = json!({ "packages": [
            { "name": user, "dependencies": [{ "name": used, "kind": kind }] },
            { "name": used, "dependencies": [{ "name": "libc", "kind": null }] },
        ]});
        let found = check(&metadata).unwrap();
        found.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn table_points_down_only() {
        for (at, layer) in LAYERS.iter().enumerate() {
            for arrow in layer.arrows {
                let lower = LAYERS[..at].iter().any(|lower| lower.package == *arrow);
                assert!(lower, "{} -> {arrow}", layer.package);
            }
        }
    }

    #[test]
    fn arrow_down_over_several_layers_is_allowed() {
        assert_eq!(findings("extant", "extant-space", None), [""; 0]);
        assert_eq!(
            findings("extant-image", "extant-blockdev", Some("dev")),
            [""; 0]
        );
    }

    #[test]
    fn lower_layer_beside_the_arrows_is_for_tests_only() {
        assert_eq!(
            findings("extant-image", "extant-ext4", Some("dev")),
            [""; 0]
        );
        assert_eq!(findings("extant-image", "extant-ext4", None).len(), 1);
        assert_eq!(findings("xtask", "extant-space", None).len(), 1);
    }

    #[test]
    fn arrow_without_a_dependency_is_found() {
        let metadata = json!({ "packages": [
            { "name": "extant-sys", "dependencies": [{ "name": "extant-space", "kind": null }] },
            { "name": "extant-ondisk", "dependencies": [{ "name": "extant-space", "kind": "dev" }] },
        ]});
        let found = unused(&metadata).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].place.starts_with("extant-ondisk"), "{found:?}");
    }

    #[test]
    fn arrow_up_is_reported_with_the_permitted_layers() {
        assert_eq!(
            findings("extant-hostfs", "extant-image", None),
            [
                "extant-hostfs -> extant-image: is no arrow down; extant-hostfs may use \
                 extant-provision, extant-space, extant-sys"
            ]
        );
    }

    #[test]
    fn arrow_up_for_tests_or_to_a_neighbour_is_an_error() {
        for (user, used) in [
            ("extant-space", "extant-hostfs"),
            ("extant-space", "extant-ondisk"),
            ("extant-hostfs", "extant-ext4"),
            ("extant-pool", "extant-mount"),
            ("extant-testkit", "extant-hostfs"),
            ("extant", "xtask"),
        ] {
            for kind in [None, Some("dev"), Some("build")] {
                assert_eq!(findings(user, used, kind).len(), 1, "{user} -> {used}");
            }
        }
    }

    #[test]
    fn test_kit_is_for_tests_and_benches() {
        assert_eq!(findings("extant-space", TEST_KIT, Some("dev")), [""; 0]);
        assert_eq!(findings(BENCH, TEST_KIT, None), [""; 0]);
        assert_eq!(
            findings("extant-pool", TEST_KIT, None),
            ["extant-pool -> extant-testkit: the test kit is for [dev-dependencies]"]
        );
    }

    #[test]
    fn crate_outside_the_table_is_an_error() {
        let found = findings("extant-novel", "extant-space", None);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("extant-novel: is in no layer"));
    }
}

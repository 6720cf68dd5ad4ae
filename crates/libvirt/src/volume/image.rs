//! The elements of libvirt's `<volume>` for a qcow2 image: `<compat>`, `<clusterSize>`,
//! `<features>`, `<backingStore>`.

use std::path::Path;

use extant_image::format::Version;
use extant_image::{BackingFile, Qcow2Info, Qcow2Options};
use extant_space::{Error, ErrorKind, Result};
use roxmltree::Node;

use crate::document::{child, invalid, size, text};
use crate::writer::{Writer, escape};

/// Elements below `<target>` that are read and rewritten.
pub(super) const KNOWN_IN_TARGET: [&str; 8] = [
    "path",
    "format",
    "permissions",
    "timestamps",
    "encryption",
    "compat",
    "clusterSize",
    "features",
];

/// Refuses a non-empty backing store.
pub(super) fn refuse_backing(root: Node<'_, '_>) -> Result<()> {
    match child(root, "backingStore")? {
        Some(backing) if backing.has_children() => Err(invalid(
            "<backingStore> is for qcow2; a raw volume has no backing file",
        )),
        _ => Ok(()),
    }
}

/// Reads the options of a qcow2 volume.
pub(super) fn read(root: Node<'_, '_>, target: Option<Node<'_, '_>>) -> Result<Qcow2Options> {
    let mut options = Qcow2Options {
        backing: backing(root)?,
        ..Qcow2Options::default()
    };
    let element = |name| target.map(|target| child(target, name)).transpose();
    let features = element("features")?.flatten();
    let compat = target.map(|target| text(target, "compat")).transpose()?;
    options.version = match compat.flatten() {
        Some("1.1") => Version::V3,
        Some("0.10") => Version::V2,
        // As in libvirt.
        None if features.is_some() => Version::V3,
        None => Version::V2,
        Some(other) => {
            return Err(invalid(format!("<compat> is not 0.10 or 1.1: {other:?}")));
        }
    };
    let Some(target) = target else {
        return Ok(options);
    };
    if let Some(bytes) = size(target, "clusterSize")? {
        options.cluster_bytes = bytes;
    }
    if let Some(features) = features {
        for feature in features.children().filter(Node::is_element) {
            match feature.tag_name().name() {
                "lazy_refcounts" => options.lazy_refcounts = true,
                other => {
                    return Err(Error::new(ErrorKind::Unsupported)
                        .detail(format!("XML: <features>: {other} is not supported")));
                }
            }
        }
    }
    Ok(options)
}

/// The backing file, which is named and not opened.
fn backing(root: Node<'_, '_>) -> Result<Option<BackingFile>> {
    let Some(backing) = child(root, "backingStore")?.filter(Node::has_children) else {
        return Ok(None);
    };
    let name = text(backing, "path")?.unwrap_or_default();
    let format = child(backing, "format")?.and_then(|format| format.attribute("type"));
    match (name, format) {
        ("", _) => Err(invalid("<backingStore> needs a <path>")),
        (_, None | Some("" | "unknown" | "auto")) => Err(invalid(
            "<backingStore> needs a <format type='...'>: the format of a backing file is never guessed",
        )),
        (name, Some(format)) => Ok(Some(BackingFile {
            name: name.into(),
            format: format.to_owned(),
        })),
    }
}

/// The elements below `<target>`.
pub(super) fn write_target(xml: &mut Writer, image: &Qcow2Info) {
    xml.value("compat", image.compat);
    xml.bytes("clusterSize", image.cluster_bytes);
    xml.begin("features", "");
    if image.lazy_refcounts {
        xml.begin("lazy_refcounts", "");
        xml.end();
    }
    xml.end();
}

/// `<backingStore>`, as the image names it.
pub(super) fn write_backing(xml: &mut Writer, image: &Qcow2Info) {
    let Some(name) = &image.backing_file else {
        return;
    };
    xml.begin("backingStore", "");
    xml.value("path", Path::new(name).display());
    if let Some(format) = &image.backing_format {
        xml.begin("format", &format!(" type='{}'", escape(format)));
        xml.end();
    }
    xml.end();
}

#[cfg(test)]
mod tests {
    use super::super::VolumeXml;
    use super::*;
    use extant_image::{Format, Preallocation};
    use extant_pool::Operation;

    fn volume(inside: &str, target: &str) -> String {
        format!(
            "<volume><name>a</name><capacity>1048576</capacity>{inside}
             <target><format type='qcow2'/>{target}</target></volume>"
        )
    }

    #[test]
    fn description_of_virsh_is_read() {
        let read = VolumeXml::read(&volume(
            "<allocation>200704</allocation>
             <backingStore><path>/srv/base</path><format type='raw'/><permissions/></backingStore>",
            "<compat>1.1</compat><clusterSize unit='KiB'>128</clusterSize>
             <features><lazy_refcounts/></features>",
        ))
        .unwrap();
        assert_eq!(read.format, Format::Qcow2);
        let options = read.qcow2.unwrap();
        assert_eq!(options.cluster_bytes, 128 << 10);
        assert_eq!(options.version, Version::V3);
        assert!(options.lazy_refcounts);
        let backing = options.backing.unwrap();
        assert_eq!(
            (backing.name.as_path(), &*backing.format),
            (Path::new("/srv/base"), "raw")
        );
        for (target, version) in [
            ("<compat>0.10</compat>", Version::V2),
            ("", Version::V2),
            ("<features/>", Version::V3),
        ] {
            let read = VolumeXml::read(&volume("", target)).unwrap();
            assert_eq!(read.qcow2.unwrap().version, version, "{target}");
        }
    }

    #[test]
    fn unknown_option_of_an_image_is_refused_by_name() {
        for (inside, target, word) in [
            ("", "<compat>2</compat>", "compat"),
            ("", "<clusterSize unit='x'>1</clusterSize>", "clusterSize"),
            ("", "<features><extended_l2/></features>", "extended_l2"),
            (
                "<backingStore><path>/a</path></backingStore>",
                "",
                "never guessed",
            ),
            (
                "<backingStore><format type='raw'/></backingStore>",
                "",
                "path",
            ),
        ] {
            let error = VolumeXml::read(&volume(inside, target)).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn space_of_an_image_is_that_of_the_described_one_unless_something_else_is_said() {
        use Preallocation::{Falloc, Full, Metadata, Off};
        let made = |inside: &str, said| {
            let operation = VolumeXml::read(&volume(inside, ""))
                .unwrap()
                .operation(said, Full);
            let Ok(Operation::Create(create)) = operation else {
                panic!("{operation:?}")
            };
            (create.preallocation, create.allocation_bytes)
        };
        let all = 1 << 20;
        let [some, more] =
            ["65536", "1200128"].map(|size| format!("<allocation>{size}</allocation>"));
        let is = |word: &str| format!("<?extant preallocation='{word}'?>{some}");
        for (inside, said, wanted) in [
            (String::new(), None, (Full, all)),
            // As libvirt describes its tables, and a fully allocated image.
            (some.clone(), None, (Off, 0)),
            (more, None, (Full, all)),
            (some.clone(), Some(Falloc), (Falloc, all)),
            (is("off"), None, (Off, 0)),
            (is("off"), Some(Full), (Full, all)),
            (is("metadata"), None, (Metadata, all)),
            (is("falloc"), None, (Falloc, all)),
            (is("full"), None, (Full, all)),
            (is("full"), Some(Off), (Off, 0)),
        ] {
            assert_eq!(made(&inside, said), wanted, "{inside} {said:?}");
        }
    }
}

//! `<pool>`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_pool::{Definition, Limits, Pool, PoolKind};
use extant_space::{Error, ErrorKind, Result};

use crate::document::{child, invalid, parse, permissions, text};
use crate::foreign::{to_write, unknown_elements};
use crate::writer::Writer;

const KNOWN: [&str; 8] = [
    "name",
    "uuid",
    "capacity",
    "allocation",
    "available",
    "source",
    "target",
    "limits",
];
const KNOWN_IN_TARGET: [&str; 2] = ["path", "permissions"];

/// The definition that libvirt describes; its kind must be `dir`.
///
/// # Errors
/// `InvalidArgument` with the invalid part, `Unsupported` for other kinds.
pub fn definition_from_xml(source: &str, limits: Limits) -> Result<Definition> {
    let document = parse(source, "pool")?;
    let root = document.root_element();
    match root.attribute("type") {
        Some("dir") => {}
        kind => {
            return Err(Error::new(ErrorKind::Unsupported).detail(format!(
                "XML: a pool of type '{}' is not offered; 'dir' is",
                kind.unwrap_or_default()
            )));
        }
    }
    let name = text(root, "name")?.ok_or_else(|| invalid("a pool needs a <name>"))?;
    let target = child(root, "target")?;
    let path = target
        .map(|target| text(target, "path"))
        .transpose()?
        .flatten();
    let path = path.ok_or_else(|| invalid("a pool needs a <path> in its <target>"))?;
    if !path.starts_with('/') {
        return Err(invalid(format!("<path> is not absolute: {path:?}")));
    }
    let mut definition = Definition::named(name.parse()?, Path::new(path), limits)?;
    if let Some(uuid) = text(root, "uuid")? {
        definition.set_identifier(&identifier_of(uuid)?);
    }
    definition.set_permissions(permissions(target)?);
    definition.set_foreign(unknown_elements(source, root, &KNOWN, &KNOWN_IN_TARGET)?);
    Ok(definition)
}

/// 32 hexadecimal digits, with dashes wherever.
fn identifier_of(uuid: &str) -> Result<String> {
    let digits: String = uuid.chars().filter(|&character| character != '-').collect();
    if digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(digits.to_ascii_lowercase())
    } else {
        Err(invalid(format!("<uuid> is not a UUID: {uuid:?}")))
    }
}

fn uuid_of(identifier: &str) -> Option<String> {
    let part = |range: std::ops::Range<usize>| identifier.get(range);
    Some(format!(
        "{}-{}-{}-{}-{}",
        part(0..8)?,
        part(8..12)?,
        part(12..16)?,
        part(16..20)?,
        part(20..32)?
    ))
}

/// libvirt's pools hold files and disks of the host.
pub(crate) fn check_is_known_to_libvirt(pool: &Pool) -> Result<()> {
    match pool.definition().kind() {
        PoolKind::Dir => Ok(()),
        PoolKind::Disk => Err(Error::new(ErrorKind::Unsupported)
            .at(pool.definition().path())
            .detail(
                "XML: volumes of libvirt's pools of type 'disk' have no names but their devices'",
            )),
        kind @ (PoolKind::Rbd | PoolKind::Lvm) => Err(Error::new(ErrorKind::Unsupported)
            .at(pool.definition().path())
            .detail(format!(
                "XML: pools of kind '{}' are not described to libvirt",
                kind.name()
            ))),
        kind => Err(Error::new(ErrorKind::Unsupported)
            .at(pool.definition().path())
            .detail(format!(
                "XML: libvirt has no pools of kind '{}'",
                kind.name()
            ))),
    }
}

/// The pool as libvirt describes it.
///
/// # Errors
/// `Unsupported` for a pool in an image, which libvirt does not know.
pub fn pool_xml(pool: &Pool) -> Result<String> {
    check_is_known_to_libvirt(pool)?;
    let info = pool.info()?;
    let definition = pool.definition();
    let kept = to_write(definition.foreign())?;
    let path = std::path::absolute(definition.path());
    let path = path.map_err(|source| Error::from(source).at(definition.path()))?;
    let name = match definition.name() {
        Some(name) => name.to_string(),
        None => path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    };
    let mut xml = Writer::new("pool", &format!(" type='dir'{}", kept.namespaces));
    xml.value("name", name);
    if let Some(uuid) = definition.identifier().and_then(uuid_of) {
        xml.value("uuid", uuid);
    }
    xml.bytes("capacity", info.space.total_bytes);
    xml.bytes("allocation", info.space.allocated_bytes);
    xml.bytes("available", info.space.available_bytes);
    xml.begin("target", "");
    xml.value("path", path.display());
    let made = path.metadata();
    let made = made.map_err(|source| Error::from(source).at(&path))?;
    xml.begin("permissions", "");
    xml.value("mode", format!("{:04o}", made.mode() & 0o777));
    xml.value("owner", made.uid());
    xml.value("group", made.gid());
    xml.end();
    xml.raw(&kept.target);
    xml.end();
    xml.raw(&kept.root);
    Ok(xml.finish())
}

#[cfg(test)]
mod tests {
    use extant_pool::Permissions;

    use super::*;

    const POOL: &str = "<pool type='dir' xmlns:fs='urn:fs'>
      <name>vms</name>
      <uuid>c70e950b-1328-41c8-84bd-437a6f03423f</uuid>
      <target><path>PATH</path><permissions><mode>0755</mode></permissions></target>
      <fs:mount_opts><fs:option name='sync'/></fs:mount_opts>
    </pool>";

    #[test]
    fn description_comes_out_as_it_came_in() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a<b");
        let shown = path.display().to_string();
        let text = POOL.replace("PATH", &super::super::writer::escape(&shown));
        let definition = definition_from_xml(&text, Limits::default()).unwrap();
        assert_eq!(definition.path(), path);
        let pool = Pool::build(definition).unwrap();
        let out = pool_xml(&pool).unwrap();
        for words in [
            "xmlns:fs='urn:fs'",
            "<uuid>c70e950b-1328-41c8-84bd-437a6f03423f</uuid>",
            "<fs:mount_opts><fs:option name='sync'/></fs:mount_opts>",
            "a&lt;b</path>",
        ] {
            assert!(out.contains(words), "no {words} in {out}");
        }
        let mut again = definition_from_xml(&out, Limits::default()).unwrap();
        again.set_permissions(Permissions::default());
        assert_eq!(&again, pool.definition());
    }

    #[test]
    fn directory_that_is_made_has_the_described_permissions_and_another_keeps_its_own() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pools/vms");
        let text = POOL.replace("PATH", path.to_str().unwrap());
        let build = |mode: &str| {
            let text = text.replace("0755", mode);
            let definition = definition_from_xml(&text, Limits::default()).unwrap();
            pool_xml(&Pool::build(definition).unwrap()).unwrap()
        };
        let mode = || path.metadata().unwrap().mode() & 0o7777;
        assert!(build("0710").contains("<mode>0710</mode>"));
        assert_eq!(mode(), 0o710);
        assert!(build("0777").contains("<mode>0710</mode>"));
        assert_eq!(mode(), 0o710);
    }

    #[test]
    fn other_kinds_and_relative_paths_are_refused() {
        for (text, kind) in [
            (POOL.replace("'dir'", "'logical'"), ErrorKind::Unsupported),
            (POOL.replace("PATH", "relative"), ErrorKind::InvalidArgument),
            (POOL.replace("c70e950b", "zzz"), ErrorKind::InvalidArgument),
            (POOL.replace("vms", "a/b"), ErrorKind::InvalidArgument),
        ] {
            let text = text.replace("PATH", "/srv");
            let error = definition_from_xml(&text, Limits::default()).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}

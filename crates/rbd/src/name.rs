//! The name of an image, in QEMU's syntax: `rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][:KEY=VALUE]...`
//!
//! A backslash before a character takes its meaning away. The keys are `id`, `conf` and Ceph's
//! options, such as `keyring` and `mon_host`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use extant_space::{Error, ErrorKind, Result};

use crate::options::ClusterOptions;

const SCHEME: &str = "rbd:";
/// Characters with a meaning.
const SPECIAL: [char; 5] = ['/', '@', ':', '=', '\\'];

/// The name of an image, of one of its snapshots, and how its cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdName {
    /// The pool.
    pub pool: String,
    /// The namespace in it; empty: the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot, which is read-only.
    pub snapshot: Option<String>,
    /// Keys and values, in their order.
    pub options: Vec<(String, String)>,
}

impl RbdName {
    /// Whether `text` is meant as such a name, valid or not.
    pub fn is_name(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The same without options, which may contain a key.
    pub fn without_options(&self) -> Self {
        Self {
            options: Vec::new(),
            ..self.clone()
        }
    }

    /// `IMAGE` or `IMAGE@SNAPSHOT`.
    pub fn own_name(&self) -> String {
        match &self.snapshot {
            None => self.image.clone(),
            Some(snapshot) => format!("{}@{snapshot}", self.image),
        }
    }

    /// How the cluster is reached.
    pub fn cluster(&self) -> ClusterOptions {
        let mut cluster = ClusterOptions::default();
        for (key, value) in &self.options {
            match key.as_str() {
                "id" => cluster.id.clone_from(value),
                "conf" => cluster.conf = Some(PathBuf::from(value)),
                _ => cluster.settings.push((key.clone(), value.clone())),
            }
        }
        cluster
    }
}

impl FromStr for RbdName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why: &str| {
            Err(Error::new(ErrorKind::InvalidArgument)
                .at(text)
                .detail(why)
                .advice("the form is rbd:POOL/IMAGE[@SNAPSHOT][:id=ID][:conf=FILE]"))
        };
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return refuse("does not begin with rbd:");
        };
        let mut fields = split(rest, ':').into_iter();
        let place = fields.next().unwrap_or_default();
        let mut at = split(place, '@').into_iter();
        let (path, snapshot) = (at.next().unwrap_or_default(), at.next());
        if at.next().is_some() {
            return refuse("names two snapshots");
        }
        let (pool, namespace, image) = match split(path, '/')[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] => (pool, namespace, image),
            _ => return refuse("names no pool and image"),
        };
        if pool.is_empty() || image.is_empty() || snapshot == Some("") {
            return refuse("an empty name");
        }
        let mut options = Vec::new();
        for field in fields {
            let key = split(field, '=')[0];
            match field[key.len()..].strip_prefix('=') {
                Some(value) if !key.is_empty() => options.push((plain(key), plain(value))),
                _ => return refuse("an option is no KEY=VALUE"),
            }
        }
        Ok(Self {
            pool: plain(pool),
            namespace: plain(namespace),
            image: plain(image),
            snapshot: snapshot.map(plain),
            options,
        })
    }
}

impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/", escaped(&self.pool))?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", escaped(&self.namespace))?;
        }
        f.write_str(&escaped(&self.image))?;
        if let Some(snapshot) = &self.snapshot {
            write!(f, "@{}", escaped(snapshot))?;
        }
        for (key, value) in &self.options {
            write!(f, ":{}={}", escaped(key), escaped(value))?;
        }
        Ok(())
    }
}

/// The parts of `text` between separators that no backslash precedes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut is_escaped) = (0, false);
    for (at, character) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if character == '\\' {
            is_escaped = true;
        } else if character == separator {
            parts.push(&text[start..at]);
            start = at + separator.len_utf8();
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Without the backslashes that take a meaning away.
fn plain(text: &str) -> String {
    let mut characters = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        plain.extend(match character {
            '\\' => characters.next(),
            _ => Some(character),
        });
    }
    plain
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if SPECIAL.contains(&character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn name_with_all_parts_is_read_as_qemu_reads_it() {
        let name: RbdName =
            r"rbd:vms/team/disk\@1@before:id=me:conf=/etc/ceph/my.conf:mon_host=[\:\:1]\:6789"
                .parse()
                .unwrap();
        assert_eq!(
            (
                name.pool.as_str(),
                name.namespace.as_str(),
                name.image.as_str()
            ),
            ("vms", "team", "disk@1")
        );
        assert_eq!(name.snapshot.as_deref(), Some("before"));
        let cluster = name.cluster();
        assert_eq!(cluster.id, "me");
        assert_eq!(cluster.conf.unwrap().to_str(), Some("/etc/ceph/my.conf"));
        assert_eq!(
            cluster.settings,
            [("mon_host".to_owned(), "[::1]:6789".to_owned())]
        );
    }

    #[test]
    fn incomplete_names_are_refused() {
        for text in [
            "rbd:",
            "rbd:pool",
            "rbd:/image",
            "rbd:pool/",
            "rbd:a/b/c/d",
            "rbd:a/b@",
            "rbd:a/b@c@d",
            "rbd:a/b:id",
            "rbd:a/b:=x",
            "a/b",
        ] {
            let error = text.parse::<RbdName>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
        }
    }

    proptest! {
        #[test]
        fn shown_name_is_read_back(
            names in prop::collection::vec("[a-z@:/=\\\\é]{1,6}", 5),
            has_namespace: bool,
            has_snapshot: bool,
        ) {
            let [pool, namespace, image, key, value] = <[String; 5]>::try_from(names).unwrap();
            let name = RbdName {
                pool,
                namespace: if has_namespace { namespace } else { String::new() },
                image,
                snapshot: has_snapshot.then(|| value.clone()),
                options: vec![(key, value)],
            };
            prop_assert_eq!(name.to_string().parse::<RbdName>().unwrap(), name);
        }
    }
}

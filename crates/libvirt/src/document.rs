//! Reading of an XML document: bounded, and with errors of ours.

use extant_pool::{Owner, Permissions};
use extant_space::{ByteSize, Error, ErrorKind, Result};
use roxmltree::{Document, Node, ParsingOptions};

/// Far more than libvirt writes.
const BYTES_MAX: usize = 64 << 10;
const NODES_MAX: u32 = 4096;
const DEPTH_MAX: usize = 32;

pub(super) fn invalid(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(format!("XML: {}", detail.into()))
}

/// Reads a document whose root is `<root>`.
pub(super) fn parse<'t>(text: &'t str, root: &str) -> Result<Document<'t>> {
    if text.len() > BYTES_MAX {
        return Err(invalid(format!("longer than {BYTES_MAX} bytes")));
    }
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: NODES_MAX,
        ..ParsingOptions::default()
    };
    let document =
        Document::parse_with_options(text, options).map_err(|error| invalid(error.to_string()))?;
    check_depth(&document)?;
    let found = document.root_element();
    if !found.has_tag_name(root) {
        let name = found.tag_name().name();
        return Err(invalid(format!("<{root}> is expected, and not <{name}>")));
    }
    Ok(document)
}

/// Counted in the parsed document, which uses no stack for the depth and ignores tags in attributes
/// and comments.
fn check_depth(document: &Document<'_>) -> Result<()> {
    // The document itself is the first ancestor of all.
    let is_too_deep = |node: Node<'_, '_>| node.ancestors().nth(DEPTH_MAX + 1).is_some();
    if document.descendants().any(is_too_deep) {
        Err(invalid(format!("deeper than {DEPTH_MAX} elements")))
    } else {
        Ok(())
    }
}

/// The element `name` right below `node`; more than one is an error.
pub(super) fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Result<Option<Node<'a, 'i>>> {
    let mut found = node.children().filter(|child| child.has_tag_name(name));
    let first = found.next();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(invalid(format!("more than one <{name}>"))),
    }
}

/// The text of the element `name` right below `node`.
pub(super) fn text<'a>(node: Node<'a, '_>, name: &str) -> Result<Option<&'a str>> {
    let found = child(node, name)?;
    Ok(found.map(|found| found.text().unwrap_or_default().trim()))
}

/// The size in the element `name` right below `node`, in its unit.
pub(super) fn size(node: Node<'_, '_>, name: &str) -> Result<Option<u64>> {
    let Some(found) = child(node, name)? else {
        return Ok(None);
    };
    let number = found.text().unwrap_or_default().trim();
    let unit = found.attribute("unit").unwrap_or("B");
    let is_byte = ["byte", "bytes"]
        .iter()
        .any(|word| unit.eq_ignore_ascii_case(word));
    let unit = if is_byte { "B" } else { unit };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let size = if is_number {
        format!("{number}{unit}").parse::<ByteSize>().ok()
    } else {
        None
    };
    let size = size.ok_or_else(|| invalid(format!("<{name}> is not a size: {number:?} {unit}")))?;
    Ok(Some(size.0))
}

/// The number in the element `name` right below `node`, in a base.
pub(super) fn number(node: Node<'_, '_>, name: &str, base: u32) -> Result<Option<u32>> {
    let Some(text) = text(node, name)? else {
        return Ok(None);
    };
    match u32::from_str_radix(text, base) {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(invalid(format!("<{name}> is not a number: {text:?}"))),
    }
}

/// `<permissions>` of a `<target>`. An owner or group of -1 is that of the process.
pub(super) fn permissions(target: Option<Node<'_, '_>>) -> Result<Permissions> {
    let found = target.map(|target| child(target, "permissions"));
    let Some(node) = found.transpose()?.flatten() else {
        return Ok(Permissions::default());
    };
    let mode = number(node, "mode", 8)?;
    if let Some(mode) = mode.filter(|mode| mode & !0o777 != 0) {
        return Err(invalid(format!("{mode:o} is not a file mode")));
    }
    let id = |name| match text(node, name)? {
        Some("-1") => Ok(None),
        _ => number(node, name, 10),
    };
    Ok(Permissions {
        mode,
        owner: Owner {
            uid: id("owner")?,
            gid: id("group")?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_documents_are_refused_before_they_cost_anything() {
        let bomb = "<!DOCTYPE v [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;'>]><v>&b;</v>";
        let file = "<!DOCTYPE v [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><v>&a;</v>";
        let deep = "<v>".repeat(20_000);
        let hidden_depth = "<v a='>'>".repeat(5_000);
        let long = format!("<v>{}</v>", " ".repeat(BYTES_MAX));
        let many = format!("<v>{}</v>", "<a/>".repeat(5_000));
        for text in [
            bomb,
            file,
            &deep,
            &hidden_depth,
            &long,
            &many,
            "",
            "<v",
            "<v>&x;</v>",
            "<w/>",
        ] {
            let error = parse(text, "v").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
        assert!(parse("<v><a>&lt;&#65;</a></v>", "v").is_ok());
    }

    #[test]
    fn depth_is_that_of_elements_whatever_their_attributes_and_comments_hold() {
        let nested = |depth: usize, attribute: &str| {
            let inner = format!("<v a='{attribute}'>").repeat(depth - 1);
            format!("<v>{inner}{}</v>", "</v>".repeat(depth - 1))
        };
        for attribute in ["", "/>", "x>"] {
            parse(&nested(DEPTH_MAX, attribute), "v").unwrap();
            let error = parse(&nested(DEPTH_MAX + 1, attribute), "v").unwrap_err();
            assert!(error.to_string().contains("deeper"), "{error}");
        }
        let flat = "<a b='>'/><!-- <v> --><![CDATA[<v>]]>".repeat(2 * DEPTH_MAX);
        parse(&format!("<v>{flat}</v>"), "v").unwrap();
        // As deep as a document can be, on a small stack.
        let deepest = nested(NODES_MAX as usize - 2, "/>");
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let parsed = small
            .spawn(move || parse(&deepest[..], "v").map(drop))
            .unwrap();
        assert!(parsed.join().unwrap().is_err());
    }

    #[test]
    fn sizes_have_the_units_of_libvirt() {
        for (element, bytes) in [
            ("<s>512</s>", Some(512)),
            ("<s unit='bytes'> 7 </s>", Some(7)),
            ("<s unit='byte'>7</s>", Some(7)),
            ("<s unit='BYTES'>7</s>", Some(7)),
            ("<s unit='KiB'>1</s>", Some(1024)),
            ("<s unit='K'>1</s>", Some(1024)),
            ("<s unit='KB'>1</s>", Some(1000)),
            ("<s unit='G'>2</s>", Some(2 << 30)),
            ("<s unit='furlong'>2</s>", None),
            ("<s>-1</s>", None),
            ("<s>1K</s>", None),
            ("<s unit='E'>99</s>", None),
            ("<s/>", None),
        ] {
            let text = format!("<v>{element}</v>");
            let document = parse(&text, "v").unwrap();
            let found = size(document.root_element(), "s").ok().flatten();
            assert_eq!(found, bytes, "{element}");
        }
        let twice = parse("<v><s>1</s><s>2</s></v>", "v").unwrap();
        assert!(size(twice.root_element(), "s").is_err());
    }
}

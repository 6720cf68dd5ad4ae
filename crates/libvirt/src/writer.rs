//! Writing of XML.

use std::fmt::{Display, Write};

/// A document in the making, two spaces for each depth.
pub(super) struct Writer {
    out: String,
    open: Vec<&'static str>,
}

impl Writer {
    /// Begins with `<root attributes>`.
    pub(super) fn new(root: &'static str, attributes: &str) -> Self {
        let mut writer = Self {
            out: String::new(),
            open: Vec::new(),
        };
        writer.begin(root, attributes);
        writer
    }

    /// `<name attributes>`; the attributes begin with a space and are escaped already.
    pub(super) fn begin(&mut self, name: &'static str, attributes: &str) {
        self.indent();
        let _ = writeln!(self.out, "<{name}{attributes}>");
        self.open.push(name);
    }

    /// Closes the innermost element.
    pub(super) fn end(&mut self) {
        let name = self.open.pop().expect("something was begun");
        self.indent();
        let _ = writeln!(self.out, "</{name}>");
    }

    /// `<?target content?>`
    pub(super) fn instruction(&mut self, target: &str, content: &str) {
        self.indent();
        let _ = writeln!(self.out, "<?{target} {content}?>");
    }

    /// `<name>value</name>`
    pub(super) fn value(&mut self, name: &str, value: impl Display) {
        self.indent();
        let value = escape(&value.to_string());
        let _ = writeln!(self.out, "<{name}>{value}</{name}>");
    }

    /// `<name unit='bytes'>value</name>`
    pub(super) fn bytes(&mut self, name: &str, bytes: u64) {
        self.indent();
        let _ = writeln!(self.out, "<{name} unit='bytes'>{bytes}</{name}>");
    }

    /// Elements as they were read.
    pub(super) fn raw(&mut self, elements: &[String]) {
        for element in elements {
            self.indent();
            let _ = writeln!(self.out, "{element}");
        }
    }

    /// Closes all elements.
    pub(super) fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.end();
        }
        self.out
    }

    fn indent(&mut self) {
        let depth = self.open.len() * 2;
        let _ = write!(self.out, "{:depth$}", "");
    }
}

/// Text and attribute values; characters that XML does not allow become U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' => out.push(character),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ if character.is_control() => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
    out
}

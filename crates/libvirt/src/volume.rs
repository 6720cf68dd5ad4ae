//! `<volume>`.

mod image;

use extant_image::{Format, Preallocation, Qcow2Options};
use extant_pool::{CreateVolume, ForeignElements, Operation, Owner, Pool, VolumeInfo, VolumeName};
use extant_space::{ExtentState, Result};
use roxmltree::Node;

use crate::document::{child, invalid, parse, permissions, size, text};
use crate::foreign::{to_write, unknown_elements};
use crate::pool::check_is_known_to_libvirt;
use crate::writer::Writer;

/// Those that are read and rewritten.
const KNOWN: [&str; 8] = [
    "name",
    "key",
    "source",
    "capacity",
    "allocation",
    "physical",
    "target",
    "backingStore",
];
const KNOWN_IN_TARGET: [&str; 5] = ["path", "format", "permissions", "timestamps", "encryption"];

/// The processing instruction of our descriptions.
const INSTRUCTION: &str = "extant";

/// A volume to be made, as libvirt describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeXml {
    /// Its name.
    pub name: VolumeName,
    /// Its format.
    pub format: Format,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// The first bytes that are to be real; `None`: all, as for libvirt. The described file size of
    /// an image includes its metadata.
    pub allocation_bytes: Option<u64>,
    /// The mode, if the description is one of ours.
    pub preallocation: Option<Preallocation>,
    /// Options of qcow2.
    pub qcow2: Option<Qcow2Options>,
    /// Permissions of the file.
    pub mode: Option<u32>,
    /// Its owner and group.
    pub owner: Owner,
    /// Copy-on-write is turned off for the file.
    pub nocow: bool,
    foreign: Option<ForeignElements>,
}

impl VolumeXml {
    /// Reads a description.
    ///
    /// # Errors
    /// `InvalidArgument` with the reason; also for encryption, for a backing store that a raw
    /// volume cannot have, and for one without a format.
    pub fn read(source: &str) -> Result<Self> {
        let document = parse(source, "volume")?;
        let root = document.root_element();
        check_type(root)?;
        let name = text(root, "name")?.ok_or_else(|| invalid("a volume needs a <name>"))?;
        let capacity = size(root, "capacity")?;
        let target = child(root, "target")?;
        let format = match target
            .map(|target| child(target, "format"))
            .transpose()?
            .flatten()
        {
            Some(format) => format.attribute("type").unwrap_or("raw").parse()?,
            None => Format::Raw,
        };
        let in_target = |name: &str| target.map(|target| child(target, name)).transpose();
        for encryption in [
            child(root, "encryption")?,
            in_target("encryption")?.flatten(),
        ] {
            if encryption.is_some_and(|node| node.has_children()) {
                return Err(invalid("<encryption> is not offered"));
            }
        }
        let (qcow2, known_in_target) = match format {
            Format::Raw => {
                image::refuse_backing(root)?;
                (None, &KNOWN_IN_TARGET[..])
            }
            Format::Qcow2 => (
                Some(image::read(root, target)?),
                &image::KNOWN_IN_TARGET[..],
            ),
        };
        let permissions = permissions(target)?;
        Ok(Self {
            name: name.parse()?,
            format,
            qcow2,
            capacity_bytes: capacity.ok_or_else(|| invalid("a volume needs a <capacity>"))?,
            allocation_bytes: size(root, "allocation")?,
            preallocation: instruction_of(root),
            mode: permissions.mode,
            owner: permissions.owner,
            nocow: target
                .is_some_and(|target| target.children().any(|it| it.has_tag_name("nocow"))),
            foreign: unknown_elements(source, root, &KNOWN, known_in_target)?,
        })
    }

    /// The job that makes the volume: with the allocation of the description, unless `said`
    /// differs, which applies to the whole volume.
    ///
    /// An image whose description does not give the preallocation is thin if its allocation is less
    /// than its capacity: libvirt reports the tables and the written clusters of such a file.
    ///
    /// # Errors
    /// `InvalidArgument` for a preallocation mode that the format does not have.
    pub fn operation(
        self,
        said: Option<Preallocation>,
        of_pool: Preallocation,
    ) -> Result<Operation> {
        let told = said.or(self.preallocation);
        let allocation = match (told, self.format, self.allocation_bytes) {
            // The way of a described image is that of all of it.
            (Some(_), Format::Qcow2, _) => None,
            // As given; off has no first part.
            (Some(Preallocation::Off), ..) => None,
            (Some(_), Format::Raw, _) if said.is_some() => None,
            // Not more than there is: libvirt counts metadata there.
            (_, _, Some(bytes)) if bytes >= self.capacity_bytes => None,
            (None, Format::Qcow2, Some(_)) => Some(0),
            (_, _, allocation) => allocation,
        };
        let mut create = CreateVolume::new(self.name, self.capacity_bytes, of_pool);
        create.format = self.format;
        create.qcow2 = self.qcow2;
        create.set_space(told, of_pool, allocation)?;
        if create.allocation_bytes == 0 || create.preallocation == Preallocation::Off {
            create.preallocation = Preallocation::Off;
            create.allocation_bytes = 0;
        }
        create.mode = self.mode.unwrap_or(create.mode);
        create.owner = self.owner;
        create.nocow = self.nocow;
        create.foreign = self.foreign;
        Ok(Operation::Create(create))
    }
}

/// A volume becomes a file, whichever of libvirt's types its description has, as with libvirt.
fn check_type(root: Node<'_, '_>) -> Result<()> {
    match root.attribute("type") {
        None | Some("file" | "block" | "dir" | "network" | "netdir" | "ploop") => Ok(()),
        Some(word) => Err(invalid(format!("no volume has the type '{word}'"))),
    }
}

/// The preallocation mode in our descriptions: `<?extant preallocation='full'?>`. libvirt has no
/// element for it and ignores unknown instructions; unknown values are ignored here.
fn instruction_of(root: Node<'_, '_>) -> Option<Preallocation> {
    let mut instructions = root.children().filter_map(|child| child.pi());
    let ours = instructions.find(|instruction| instruction.target == INSTRUCTION)?;
    let word = ours.value?.trim().strip_prefix("preallocation=")?;
    let word = word.trim_matches(['\'', '"']);
    Preallocation::ALL
        .into_iter()
        .find(|mode| mode.name() == word)
}

/// The preallocation mode of a volume: of a raw one, that of its allocated parts.
fn preallocation_of(info: &VolumeInfo) -> Preallocation {
    let bytes = |state| info.map.bytes(state);
    match &info.image {
        Some(image) => image.preallocation,
        None if bytes(ExtentState::Unwritten) > 0 => Preallocation::Falloc,
        None if bytes(ExtentState::Written) > 0 => Preallocation::Full,
        None => Preallocation::Off,
    }
}

/// A volume in libvirt's description, with the foreign elements of the description that it was
/// created from.
///
/// # Errors
/// `Unsupported` in an image, whose files libvirt does not know.
pub fn volume_xml(pool: &Pool, name: &VolumeName) -> Result<String> {
    check_is_known_to_libvirt(pool)?;
    let info = pool.volume(name)?;
    let kept = to_write(pool.foreign_elements(name)?.as_ref())?;
    let path = std::path::absolute(&info.path).unwrap_or_else(|_| info.path.clone());
    let path = path.display().to_string();
    let mut xml = Writer::new("volume", &format!(" type='file'{}", kept.namespaces));
    xml.instruction(
        INSTRUCTION,
        &format!("preallocation='{}'", preallocation_of(&info)),
    );
    xml.value("name", name);
    xml.value("key", &path);
    xml.bytes("capacity", info.capacity_bytes);
    xml.bytes("allocation", info.allocation_bytes);
    xml.bytes("physical", info.file_bytes);
    xml.begin("target", "");
    xml.value("path", &path);
    let format = info.format.map_or("unknown", Format::name);
    xml.begin("format", &format!(" type='{format}'"));
    xml.end();
    xml.begin("permissions", "");
    xml.value("mode", format!("{:04o}", info.mode & 0o777));
    xml.value("owner", info.uid);
    xml.value("group", info.gid);
    xml.end();
    if let Some(image) = &info.image {
        image::write_target(&mut xml, &image.qcow2);
    }
    xml.raw(&kept.target);
    xml.end();
    if let Some(image) = &info.image {
        image::write_backing(&mut xml, &image.qcow2);
    }
    xml.raw(&kept.root);
    Ok(xml.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_of_virsh_is_read() {
        let volume = VolumeXml::read(
            "<volume type='file'>
               <name>a &amp; b</name>
               <capacity unit='GiB'>1</capacity>
               <allocation unit='MB'>10</allocation>
               <target><format type='raw'/>
                 <permissions><mode>0640</mode><owner>-1</owner><group>107</group></permissions>
               </target>
               <backingStore/>
             </volume>",
        )
        .unwrap();
        assert_eq!(volume.name.as_str(), "a & b");
        assert_eq!(volume.capacity_bytes, 1 << 30);
        assert_eq!(volume.allocation_bytes, Some(10_000_000));
        assert_eq!(volume.mode, Some(0o640));
        let owner = Owner {
            uid: None,
            gid: Some(107),
        };
        assert_eq!(volume.owner, owner);
        assert_eq!(volume.foreign, None);
    }

    #[test]
    fn space_of_a_raw_volume_is_that_of_the_described_one_unless_something_else_is_said() {
        use Preallocation::{Falloc, Full, Off};
        let made = |inside: &str, said, of_pool| {
            let text = format!("<volume><name>a</name><capacity>4096</capacity>{inside}</volume>");
            let operation = VolumeXml::read(&text).unwrap().operation(said, of_pool);
            let Ok(Operation::Create(create)) = operation else {
                panic!("{operation:?}")
            };
            (create.preallocation, create.allocation_bytes)
        };
        let is = |word: &str| format!("<?extant preallocation='{word}'?>");
        let some = "<allocation>1024</allocation>";
        for (inside, said, of_pool, wanted) in [
            ("".to_owned(), None, Full, (Full, 4096)),
            ("".to_owned(), None, Off, (Off, 0)),
            (some.to_owned(), None, Falloc, (Falloc, 1024)),
            (
                "<allocation>8192</allocation>".to_owned(),
                None,
                Full,
                (Full, 4096),
            ),
            (
                "<allocation>0</allocation>".to_owned(),
                None,
                Full,
                (Off, 0),
            ),
            (some.to_owned(), Some(Full), Off, (Full, 4096)),
            (some.to_owned(), Some(Off), Full, (Off, 0)),
            (is("off") + some, None, Full, (Off, 0)),
            (is("falloc") + some, None, Full, (Falloc, 1024)),
            (is("falloc"), None, Full, (Falloc, 4096)),
            (is("falloc"), Some(Full), Off, (Full, 4096)),
            (is("word of a later version"), None, Full, (Full, 4096)),
        ] {
            assert_eq!(
                made(&inside, said, of_pool),
                wanted,
                "{inside} {said:?} {of_pool}"
            );
        }
    }

    #[test]
    fn invalid_options_of_a_raw_volume_are_refused_by_name() {
        let with =
            |inside: &str| format!("<volume><name>a</name><capacity>1</capacity>{inside}</volume>");
        assert!(VolumeXml::read(&with("")).is_ok());
        for (text, word) in [
            (
                with("<backingStore><path>/etc/shadow</path></backingStore>"),
                "backingStore",
            ),
            (
                with("<target><encryption><secret/></encryption></target>"),
                "encryption",
            ),
            (with("<encryption><secret/></encryption>"), "encryption"),
            (with("<target><format type='vmdk'/></target>"), "vmdk"),
            (
                with("<target><permissions><mode>9</mode></permissions></target>"),
                "mode",
            ),
            (
                with("<target><permissions><mode>4755</mode></permissions></target>"),
                "4755",
            ),
            (
                with("<target><permissions><owner>-2</owner></permissions></target>"),
                "owner",
            ),
            (with("").replace("<volume", "<volume type='foo'"), "foo"),
            (with("<capacity>2</capacity>"), "capacity"),
            ("<volume><capacity>1</capacity></volume>".to_owned(), "name"),
            (
                "<volume><name>../a</name><capacity>1</capacity></volume>".to_owned(),
                "dot",
            ),
            ("<volume><name>a</name></volume>".to_owned(), "capacity"),
        ] {
            let error = VolumeXml::read(&text).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn unknown_elements_are_kept_with_their_namespaces() {
        let volume = VolumeXml::read(
            "<volume xmlns:q='urn:q&amp;q'><name>a</name><capacity>1</capacity>
             <q:hint a='1'>x &lt; y</q:hint><target><nocow/><path>/p</path></target></volume>",
        )
        .unwrap();
        let out = to_write(volume.foreign.as_ref()).unwrap();
        assert_eq!(out.namespaces, " xmlns:q='urn:q&amp;q'");
        assert_eq!(out.root, ["<q:hint a='1'>x &lt; y</q:hint>"]);
        assert_eq!(out.target, ["<nocow/>"]);
        let many = "<x>y</x>".repeat(500);
        let text = format!("<volume><name>a</name><capacity>1</capacity>{many}</volume>");
        assert!(VolumeXml::read(&text).is_err());
    }
}

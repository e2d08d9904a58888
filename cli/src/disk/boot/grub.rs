//! `grub.cfg`, as `grub-mkconfig` writes it (GNU GRUB Manual, "Shell-like scripting"). Conditions are not evaluated: an entry's first
//! kernel counts, and the last file system that is searched for before it.

use std::collections::HashMap;

use super::entry::{Entry, Expansions};

/// The most entries that are looked at.
const MOST: usize = 1000;

/// The most variables that `set` makes.
const MOST_VARIABLES: usize = 1000;

/// An entry or a submenu of the menu.
#[derive(Debug, Default)]
struct Item {
    /// Index in the menu, and in the submenu.
    place: (usize, Option<usize>),
    title: String,
    id: String,
    entry: Entry,
}

/// Reads the default entry, or the first one. `environment` is the text of `grubenv`.
pub fn parse(text: &str, environment: &str) -> Option<Entry> {
    let mut variables: HashMap<String, String> =
        environment.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let items = items(text, &mut variables);
    // A submenu's entries: "1>2", or titles or ids in the place of numbers.
    let default = variables.get("default").map_or("0", String::as_str);
    let wanted = default.rsplit('>').next().unwrap_or_default();
    let numbers: Vec<Option<usize>> = default.split('>').map(|part| part.trim().parse().ok()).collect();
    let named = |item: &&Item| !wanted.is_empty() && (item.title == wanted || item.id == wanted);
    let placed = |item: &&Item| match numbers[..] {
        [Some(index)] => item.place.0 == index,
        [Some(index), Some(inner)] => item.place == (index, Some(inner)),
        _ => false,
    };
    let chosen = items.iter().find(named).or_else(|| items.iter().find(placed)).or(items.first());
    chosen.map(|item| item.entry.clone())
}

/// The entries that start Linux, in the file's order.
fn items(text: &str, variables: &mut HashMap<String, String>) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut item: Option<Item> = None;
    // The submenu's index and that of its next entry.
    let mut submenu: Option<(usize, usize)> = None;
    let mut next = 0;
    for line in text.lines() {
        let words = words(line, variables);
        let mut words = words.iter().map(String::as_str);
        match (words.next(), &mut item) {
            (Some("submenu"), None) => {
                submenu = Some((next, 0));
                next += 1;
            }
            (Some("menuentry"), None) if items.len() < MOST => {
                let place = match &mut submenu {
                    Some((index, inner)) => {
                        *inner += 1;
                        (*index, Some(*inner - 1))
                    }
                    None => {
                        next += 1;
                        (next - 1, None)
                    }
                };
                let title = words.next().unwrap_or_default().to_owned();
                // Debian uses a variable that is empty if GRUB does not know the option.
                let id = words.skip_while(|word| *word != "--id" && !word.is_empty()).nth(1).unwrap_or_default().to_owned();
                item = Some(Item { place, title, id, ..Item::default() });
            }
            (Some("}"), Some(_)) => items.extend(item.take().filter(|item| !item.entry.kernel.is_empty())),
            (Some("}"), None) => submenu = None,
            (Some("search"), Some(item)) => {
                let words: Vec<_> = words.collect();
                if words.iter().any(|word| ["--fs-uuid", "-u"].contains(word)) && item.entry.kernel.is_empty() {
                    item.entry.uuid = words.last().map(|uuid| (*uuid).to_owned());
                }
            }
            (Some("linux" | "linux16" | "linuxefi"), Some(item)) if item.entry.kernel.is_empty() => {
                item.entry.kernel = path(words.next().unwrap_or_default());
                let quoted = |word: &str| if word.contains(' ') { format!("\"{word}\"") } else { word.to_owned() };
                item.entry.options = words.filter(|word| !word.is_empty()).map(quoted).collect::<Vec<_>>().join(" ");
            }
            (Some("initrd" | "initrd16" | "initrdefi"), Some(item)) if item.entry.initrds.is_empty() => {
                item.entry.initrds = words.filter(|word| !word.is_empty()).map(path).collect();
            }
            (Some("set"), _) => {
                if let Some((name, value)) = words.next().and_then(|word| word.split_once('='))
                    && (variables.len() < MOST_VARIABLES || variables.contains_key(name))
                {
                    variables.insert(name.to_owned(), value.to_owned());
                }
            }
            _ => {}
        }
    }
    items
}

/// A path without GRUB's name of a device before it: `(hd0,gpt1)/vmlinuz`.
fn path(word: &str) -> String {
    let rest = word.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    rest.map_or(word, |(_, path)| path).to_owned()
}

/// The words of a line, with quotes removed and variables replaced.
fn words(line: &str, variables: &HashMap<String, String>) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut expansions = Expansions::default();
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if quote != Some('\'') => word.get_or_insert_default().extend(letters.next()),
            '\'' | '"' if quote == Some(letter) => quote = None,
            '\'' | '"' if quote.is_none() => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            '$' if quote != Some('\'') => {
                let braces = letters.next_if_eq(&'{').is_some();
                let mut name = String::new();
                while let Some(letter) = letters.next_if(|letter| letter.is_ascii_alphanumeric() || *letter == '_') {
                    name.push(letter);
                }
                if braces {
                    letters.next_if_eq(&'}');
                }
                let value = expansions.fitting(variables.get(&name).map_or("", String::as_str));
                // A list of parameters becomes several words, as in the shell.
                for (index, part) in value.split(' ').enumerate() {
                    if index > 0 && quote.is_none() {
                        words.extend(word.take());
                    } else if index > 0 {
                        word.get_or_insert_default().push(' ');
                    }
                    word.get_or_insert_default().push_str(part);
                }
            }
            '#' if quote.is_none() && word.is_none() => break,
            ';' | ' ' | '\t' if quote.is_none() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::super::entry::LONGEST_EXPANSION;
    use super::*;

    /// Debian's, shortened.
    pub const DEBIAN: &str = r#"
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
set default="0"
function gfxmode {
	set gfxpayload="${1}"
}
set menu_color_normal=cyan/blue
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-aa' {
	load_video
	insmod gzio
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	set root='hd0,gpt2'
	if [ x$feature_platform_search_hint = xy ]; then
	  search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt2  1111-2222
	else
	  search --no-floppy --fs-uuid --set=root 1111-2222
	fi
	echo	'Loading Linux 6.12 ...'
	linux	/boot/vmlinuz-6.12 root=UUID=1111-2222 ro  quiet "one=two three" $extra
	initrd	/boot/initrd.img-6.12
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-aa' {
	menuentry 'Linux 6.12' --class debian $menuentry_id_option 'gnulinux-6.12-advanced-aa' {
		linux	/boot/vmlinuz-6.12 root=UUID=1 ro
	}
	menuentry 'Linux 6.1' --class debian --id old {
		linux	(hd0,gpt2)/boot/vmlinuz-6.1 root=UUID=1 ro
		initrd	/early.img /boot/initrd.img-6.1
	}
}
menuentry 'Firmware' {
	fwsetup
}
menuentry 'Last' {
	linux /last
}
"#;

    #[test]
    fn the_default_entry_is_read() {
        let entry = parse(DEBIAN, "# GRUB Environment Block\nextra=a b\n###").unwrap();
        assert_eq!((&entry.kernel[..], &entry.uuid.unwrap()[..]), ("/boot/vmlinuz-6.12", "1111-2222"));
        assert_eq!(
            (entry.initrds, &entry.options[..]),
            (vec!["/boot/initrd.img-6.12".into()], "root=UUID=1111-2222 ro quiet \"one=two three\" a b")
        );
    }

    #[test]
    fn other_entries_are_chosen_by_number_title_or_id() {
        let kernel = |default: &str| parse(&DEBIAN.replace("default=\"0\"", &format!("default={default}")), "saved_entry=old").unwrap();
        assert_eq!(kernel("'1>1'").kernel, "/boot/vmlinuz-6.1");
        assert_eq!(kernel("'Advanced options>Linux 6.1'").initrds, ["/early.img", "/boot/initrd.img-6.1"]);
        assert_eq!(kernel("\"${saved_entry}\"").kernel, "/boot/vmlinuz-6.1");
        assert_eq!(kernel("3").kernel, "/last");
        assert_eq!(kernel("nothing").kernel, "/boot/vmlinuz-6.12");
    }

    #[test]
    fn files_without_kernels_have_no_entry() {
        assert_eq!(parse("menuentry 'a' {\n  chainloader /x\n}\n", ""), None);
        assert_eq!(parse("linux /x\n", ""), None);
        assert_eq!(parse("menuentry 'a' {\n linux /x", ""), None);
    }

    /// Doubled 40 times, a letter would be a terabyte.
    #[test]
    fn variables_are_bounded() {
        let doubled = "set a=\"$a$a\"\n".repeat(40);
        let options = |text: &str| parse(&format!("{text}menuentry m {{\n linux /x \"$a\" end\n}}\n"), "").unwrap().options;
        assert!(options(&format!("set a=x\n{doubled}")).len() <= LONGEST_EXPANSION + " end".len());
        let many: String = (0..2 * MOST_VARIABLES).map(|index| format!("set v{index}=x\n")).collect();
        assert_eq!(options(&format!("{many}set a=x\n")), "end");
        assert_eq!(options(&format!("set a=y\n{many}set a=x\n")), "x end");
    }
}

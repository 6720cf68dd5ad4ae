//! A C project: many units that need each other, and a makefile that knows it.

use std::fs;
use std::path::Path;

const UNITS: u64 = 100;

/// Writes it into an existing directory.
///
/// The program prints the result of [`answer`].
pub fn generate(directory: &Path) {
    let write = |name: &str, text: String| fs::write(directory.join(name), text).unwrap();
    for unit in 0..UNITS {
        write(
            &format!("unit_{unit}.h"),
            format!(
                "long unit_{unit}(long x);\n#define UNIT_{unit} {}L\n",
                factor(unit)
            ),
        );
        let needed = needed(unit);
        let include: String = needed
            .iter()
            .map(|n| format!("#include \"unit_{n}.h\"\n"))
            .collect();
        let calls: String = needed
            .iter()
            .map(|n| format!(" + unit_{n}(x + {n})"))
            .collect();
        write(
            &format!("unit_{unit}.c"),
            format!(
                "#include \"unit_{unit}.h\"\n{include}\nlong unit_{unit}(long x) {{\n    \
                 return (x * UNIT_{unit}{calls}) % 1000003;\n}}\n"
            ),
        );
    }
    let last = UNITS - 1;
    write(
        "main.c",
        format!(
            "#include <stdio.h>\n#include \"unit_{last}.h\"\n\nint main(void) {{\n    \
             printf(\"%ld\\n\", unit_{last}(7));\n    return 0;\n}}\n"
        ),
    );
    let makefile = "\
CFLAGS = -O1 -Wall -Werror -MMD -MP
OBJECTS = $(patsubst %.c,out/%.o,$(wildcard *.c))

program: $(OBJECTS)
\t$(CC) -o $@ $^

out/%.o: %.c | out
\t$(CC) $(CFLAGS) -c -o $@ $<

out:
\tmkdir $@

clean:
\trm -rf out program

-include $(OBJECTS:.o=.d)
";
    write("Makefile", makefile.to_owned());
}

/// Output of the program.
pub fn answer() -> u64 {
    fn of(unit: u64, x: u64) -> u64 {
        let calls = needed(unit).into_iter().map(|n| of(n, x + n));
        (x * factor(unit) + calls.sum::<u64>()) % 1_000_003
    }
    of(UNITS - 1, 7)
}

fn factor(unit: u64) -> u64 {
    unit * 37 % 101 + 3
}

/// Units that a unit calls.
fn needed(unit: u64) -> Vec<u64> {
    match unit {
        0 => vec![],
        1 | 2 => vec![unit - 1],
        _ => vec![unit / 2, unit - unit / 3 - 1],
    }
}

#!/bin/sh
# Links the static library $1 into the shared library $2 with the soname $3 and the symbol versions of libextant.map.
#
# cargo's own shared library has no versions: rustc passes the linker a version script without them, and a linker takes one.
exec cc -shared -o "$2" -Wl,-soname,"$3" -Wl,--version-script="${0%/*}/libextant.map" -Wl,--gc-sections -Wl,--strip-debug \
    -Wl,-z,relro,-z,now -Wl,--no-undefined -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl

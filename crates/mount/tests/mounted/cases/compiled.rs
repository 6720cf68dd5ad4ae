//! Calls that Rust makes only in unsafe code, made by a C program that is compiled on the mount.

use super::{Case, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same("mmap", "shared mappings", mappings),
    same("open_by_handle_at", "file handles", handles),
];

/// Compiles and runs a program in the directory; records its output.
fn run(notes: &mut Notes, source: &str) {
    std::fs::write(notes.at("program.c"), source).unwrap();
    notes.shell(0, "cc -D_GNU_SOURCE -o program program.c && ./program");
}

fn mappings(notes: &mut Notes) {
    run(
        notes,
        r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <unistd.h>

        int main(void) {
            char buffer[16] = "";
            int file = open("mapped", O_RDWR | O_CREAT, 0644);
            ftruncate(file, 10000);
            char *map = mmap(0, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (map == MAP_FAILED) { perror("mmap"); return 1; }
            memcpy(map + 5000, "through map", 11);
            pread(file, buffer, 11, 5000);
            printf("read %s\n", buffer);
            pwrite(file, "by a call", 9, 100);
            printf("mapped %.9s\n", map + 100);
            map[11000] = 'x';
            printf("sync %d\n", msync(map, 12288, MS_SYNC));
            ftruncate(file, 20000);
            pread(file, buffer, 1, 11000);
            printf("behind the end %d\n", buffer[0]);
            printf("punch %d\n", fallocate(file, 3, 4096, 4096));
            printf("punched %d\n", map[5000]);
            map[5000] = 'y';
            close(file);
            map[5001] = 'z';
            munmap(map, 12288);
            file = open("mapped", O_RDONLY);
            pread(file, buffer, 2, 5000);
            printf("after all %.2s, %ld bytes\n", buffer, (long)lseek(file, 0, SEEK_END));
            char *private = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
            memcpy(private, "mine", 4);
            pread(file, buffer, 4, 0);
            printf("private %d\n", buffer[0]);
            return 0;
        }
        "#,
    );
}

fn handles(notes: &mut Notes) {
    run(
        notes,
        r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        #include <errno.h>

        int main(void) {
            struct file_handle *handle = calloc(1, sizeof *handle + 128);
            char buffer[16] = "";
            int mount, directory = open(".", O_RDONLY);
            int file = open("named", O_RDWR | O_CREAT, 0644);
            write(file, "content", 7);
            close(file);
            handle->handle_bytes = 128;
            printf("to handle %d\n", name_to_handle_at(AT_FDCWD, "named", handle, &mount, 0));
            rename("named", "renamed");
            file = open_by_handle_at(directory, handle, O_RDONLY);
            read(file, buffer, 7);
            printf("opened %d %s\n", file >= 0, buffer);
            close(file);
            unlink("renamed");
            syncfs(directory);
            file = open_by_handle_at(directory, handle, O_RDONLY);
            printf("removed %d\n", file < 0 && errno == ESTALE);
            return 0;
        }
        "#,
    );
}

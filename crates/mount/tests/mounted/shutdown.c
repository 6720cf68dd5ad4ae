// Changes every page of a mapped file again and again, until that is refused.
//
// Prints "mapped" after the first pass, and "bus" when a page cannot be changed any more.

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 2 << 20, PAGE = 4096 };

static void refused(int signal)
{
    (void)signal;
    _exit(write(1, "bus\n", 4) == 4 ? 0 : 1);
}

int main(int count, char **arguments)
{
    int file = count == 2 ? open(arguments[1], O_RDWR | O_CREAT, 0644) : -1;
    if (file < 0 || ftruncate(file, BYTES)) {
        perror("open");
        return 1;
    }
    char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    signal(SIGBUS, refused);
    for (int pass = 1;; pass++) {
        for (int at = 0; at < BYTES; at += PAGE)
            memset(bytes + at, pass, 64);
        if (pass == 1 && write(1, "mapped\n", 7) != 7)
            return 1;
        usleep(2000);
    }
}

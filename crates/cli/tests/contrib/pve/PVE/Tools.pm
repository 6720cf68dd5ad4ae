package PVE::Tools;

# A stand-in for the tests: what the plugin uses of Proxmox VE's module, with the same arguments.

use strict;
use warnings;

use File::Temp;

use base qw(Exporter);
our @EXPORT_OK = qw(run_command);

# Calls `outfunc` and `errfunc` with each line, without its end; returns the status with `noerr`.
sub run_command {
    my ($words, %options) = @_;
    my ($out, $error) = (delete $options{outfunc}, delete $options{errfunc});
    my $noerr = delete $options{noerr};
    delete $options{quiet};
    die "the stand-in has no option " . join(', ', keys %options) . "\n" if %options;

    my $files = { out => File::Temp->new(), error => File::Temp->new() };
    my $pid = fork() // die "fork: $!\n";
    if (!$pid) {
        open(STDOUT, '>&', $files->{out}) or die;
        open(STDERR, '>&', $files->{error}) or die;
        # Refused under -T where an argument comes from outside.
        exec({ $words->[0] } $words->@*) or exit(127);
    }
    waitpid($pid, 0);
    my $status = $? >> 8;
    for my $stream (['out', $out], ['error', $error]) {
        my $file = $files->{ $stream->[0] };
        seek($file, 0, 0);
        while (my $line = <$file>) {
            chomp $line;
            $stream->[1]->($line) if $stream->[1];
        }
    }
    die "command failed: exit code $status\n" if $status && !$noerr;
    return $status;
}

1;

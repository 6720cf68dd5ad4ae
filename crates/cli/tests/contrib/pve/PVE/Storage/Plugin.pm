package PVE::Storage::Plugin;

# A stand-in for the tests: the methods of Proxmox VE's class that the plugin inherits.

use strict;
use warnings;

use PVE::Storage;

# The first free name, of the names that `list_images` reports.
sub find_free_diskname {
    my ($class, $storeid, $scfg, $vmid, $format, $with_suffix) = @_;
    my %used = map { $_->{volid} => 1 } $class->list_images($storeid, $scfg, $vmid)->@*;
    my $suffix = $with_suffix ? ".$format" : '';
    for my $number (0 .. 99) {
        my $name = "vm-$vmid-disk-$number$suffix";
        return $name if !$used{"$storeid:$name"};
    }
    die "no free name\n";
}

1;

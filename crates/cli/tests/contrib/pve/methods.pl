# Calls the methods of the plugin as Proxmox VE does, under taint checks as in its daemons.
#
#     perl -T -I DIRECTORY methods.pl PLUGIN PROGRAM-DIRECTORY POOL

use strict;
use warnings;

use Test::More;

my ($plugin, $programs, $pool) = map { m/^(.+)$/ ? $1 : die } @ARGV;
$ENV{PATH} = "$programs:/usr/bin:/bin";
delete @ENV{qw(IFS CDPATH ENV BASH_ENV)};

require $plugin;
my $class = 'PVE::Storage::Custom::ExtantPlugin';
# Values of a file are tainted, as all input; an environment variable is such.
my $taint = substr($ENV{LC_ALL}, 0, 0);
my $storage = { type => 'extant', pool => "$pool$taint" };
my $mib = 1 << 20;

sub refused {
    my ($what, $expected, $call) = @_;
    eval { $call->() };
    like($@, $expected, "$what is refused");
}

# Declarations
is($class->type(), 'extant', 'type');
is($class->api(), 13, 'version of the interface');
for my $version (12, 14) {
    no warnings "once";
    local $PVE::Storage::version = $version;
    is($class->api(), $version < 13 ? $version : 13, "with Proxmox VE's version $version");
}
my $data = $class->plugindata();
is_deeply($data->{format}, [{ raw => 1, qcow2 => 1 }, 'raw'], 'formats');
ok($class->options()->{pool}->{fixed}, 'the pool cannot be changed');
for my $own (keys $class->properties()->%*) {
    ok($class->options()->{$own}, "the property $own is an option");
}

# Storage
ok($class->activate_storage('fast', $storage, {}), 'activation');
refused('a missing pool', qr/no such file/, sub {
    $class->activate_storage('fast', { pool => "$pool/none$taint" }, {});
});
refused('an option in place of a pool', qr/illegal pool/, sub {
    $class->activate_storage('fast', { pool => "--help$taint" }, {});
});
my ($total, $available, $used, $active) = $class->status('fast', $storage, {});
ok($total > 0 && $active, 'status');
is($total - $available, $used, 'used space');

# Creation: KiB
is_deeply($class->list_images('fast', $storage, undef, undef, {}), [], 'an empty list');
my $raw = $class->alloc_image('fast', $storage, 100, 'raw', undef, "8192$taint");
is($raw, 'vm-100-disk-0.raw', 'the first name');
my $qcow2 = $class->alloc_image('fast', $storage, 100, 'qcow2', undef, 4096);
is($qcow2, 'vm-100-disk-0.qcow2', 'a qcow2 image');
is($class->alloc_image('fast', $storage, 100, 'raw', undef, 1024), 'vm-100-disk-1.raw', 'the next name');
my $named = $class->alloc_image('fast', $storage, 101, 'raw', "vm-101-cloudinit.raw$taint", 1024);
is($named, 'vm-101-cloudinit.raw', 'a given name');
for my $wrong ([100, 'raw', 'vm-101-x.raw'], [100, 'raw', 'vm-100-x.qcow2']) {
    refused("$wrong->[2] for VM $wrong->[0]", qr/illegal name/, sub {
        $class->alloc_image('fast', $storage, $wrong->[0], $wrong->[1], $wrong->[2], 1024);
    });
}
refused('a name with a path', qr/unable to parse/, sub {
    $class->alloc_image('fast', $storage, 100, 'raw', '../vm-100-x.raw', 1024);
});
refused('a second one of the same name', qr/exists/, sub {
    $class->alloc_image('fast', $storage, 101, 'raw', $named, 1024);
});
refused('one larger than the pool', qr/space/, sub {
    $class->alloc_image('fast', $storage, 100, 'raw', undef, 1 << 40);
});
is_deeply(
    [map { $_->{volid} } $class->list_images('fast', $storage, 100, undef, {})->@*],
    ['fast:vm-100-disk-0.qcow2', 'fast:vm-100-disk-0.raw', 'fast:vm-100-disk-1.raw'],
    'nothing is left of the refused ones',
);

# Space: written, or as the storage says
my ($size, $format, $allocated, $parent) =
    $class->volume_size_info($storage, 'fast', "$raw$taint", 10);
is_deeply([$size, $format, $parent], [8 * $mib, 'raw', undef], 'size and format');
ok($allocated >= 8 * $mib, 'allocated');
is(scalar($class->volume_size_info($storage, 'fast', $qcow2)), 4 * $mib, 'size of a qcow2 image');
my $thin = { $storage->%*, preallocation => "off$taint", 'extant-rate' => "100M$taint" };
my $sparse = $class->alloc_image('fast', $thin, 102, 'raw', undef, 8192);
is(($class->volume_size_info($thin, 'fast', $sparse))[2], 0, 'a sparse volume');

# Lists
my @one = $class->list_images('fast', $storage, undef, ["fast:$raw", 'fast:none'], {})->@*;
is_deeply(
    [$one[0]->@{qw(volid vmid format size)}, scalar(@one)],
    ["fast:$raw", 100, 'raw', 8 * $mib, 1],
    'the volumes of a list',
);

# Paths
my ($path, $vmid, $vtype) = $class->path($storage, "$raw$taint", 'fast');
is_deeply([$path, $vmid, $vtype], ["$pool/$raw", 100, 'images'], 'path');
is(scalar($class->filesystem_path($storage, $raw)), $path, 'the same of a file');
is(-s $path, 8 * $mib, 'size of the file');
is(($class->parse_volname('base-100-disk-0.raw'))[5], 1, 'a base image');
refused('the path of a missing volume', qr/no such file/, sub {
    $class->path($storage, 'vm-9-disk-0.raw', 'fast');
});

# Resize: bytes
is($class->volume_resize($storage, 'fast', $raw, 12 * $mib . $taint, 0), undef, 'growth');
is(-s $path, 12 * $mib, 'size of the grown file');
is($class->volume_resize($storage, 'fast', $raw, 16 * $mib, 1), 1, 'QEMU grows a disk in use');
is(-s $path, 12 * $mib, 'the file is left to QEMU');
refused('less capacity', qr/small|shrink/, sub {
    $class->volume_resize($storage, 'fast', $raw, $mib, 0);
});

# Features
ok($class->volume_has_feature($storage, 'copy', 'fast', $raw), 'copies');
ok(!$class->volume_has_feature($storage, $_, 'fast', $raw), "no $_")
    for qw(snapshot clone template rename replicate);
refused('a snapshot', qr/not supported/, sub {
    $class->volume_snapshot($storage, 'fast', $raw, 'one');
});
refused('the path of a snapshot', qr/not supported/, sub {
    $class->path($storage, $raw, 'fast', 'one');
});

# Removal
open(my $user, '+<', $path) or die;
refused('the removal of a disk in use', qr/in use|open/, sub {
    $class->free_image('fast', $storage, $raw, 0, 'raw');
});
close($user);
is($class->free_image('fast', $storage, "$raw$taint", 0, 'raw'), undef, 'removal');
ok(!-e $path, 'the file is gone');
{
    my $warned = '';
    local $SIG{__WARN__} = sub { $warned .= $_[0] };
    $class->free_image('fast', $storage, $raw, 0, 'raw');
    like($warned, qr/does not exist/, 'a second removal warns');
}

done_testing();

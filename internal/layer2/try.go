package layer2

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Try opens a packet socket and closes it: without packet sockets the node answers neither ARP nor NDP on any link.
func Try() error {
	// Protocol 0 receives nothing (packet(7)).
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	return unix.Close(fd)
}

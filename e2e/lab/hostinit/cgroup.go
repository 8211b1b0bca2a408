package hostinit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const cgroupRoot = "/sys/fs/cgroup"

// settleCgroup moves PID 1 into its child cgroup and, where the machine has
// handed controllers down to the host, hands them on to the pods.
func settleCgroup() error {
	dir := filepath.Join(cgroupRoot, InitCgroup)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil {
		return err
	}
	controllers := strings.Fields(string(b))
	if !HasControllers(controllers) {
		return nil
	}
	enable := "+" + strings.Join(controllers, " +")
	if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte(enable), 0o644); err != nil {
		return fmt.Errorf("enable cgroup controllers: %w", err)
	}
	return nil
}

// HasControllers tells whether limits can work with these controllers. On a
// hybrid machine memory and the others belong to version 1 and are not ours.
func HasControllers(controllers []string) bool {
	return slices.Contains(controllers, "memory")
}

// Package hostinit is PID 1 of a host of the lab: it furnishes the host's
// namespaces, starts the services and reaps what is left to it. It holds no
// knowledge of Kubernetes and never talks to the lab that started it.
package hostinit

import (
	"encoding/json"
	"fmt"
	"os"
)

// PrivateDir is where a host finds its own directory (Spec.Dir).
const PrivateDir = "/run/lab"

// InitCgroup is the child cgroup, below the host's own, in which PID 1 and the
// services live: a cgroup that hands controllers on may hold no process itself.
const InitCgroup = "init"

// Spec describes a host. Paths named Source are the machine's, all others are
// the host's.
type Spec struct {
	Hostname string
	// Netns is the path of the network namespace to enter.
	Netns string
	// Dir is the directory, on the machine, that survives a power cycle.
	Dir string
	// Overlays are directories whose changes stay with the host.
	Overlays []string
	// Binds are mounted in order, after the file systems of the kernel.
	Binds []Bind
	// Dirs are made after the mounts.
	Dirs []Dir
	// Files are written after the mounts, replacing what is there.
	Files    map[string]string
	Services []Service
}

// Bind mounts Source over Target, which is created as needed. A relative
// Source is below Spec.Dir, and created as needed, too.
type Bind struct{ Source, Target string }

// Dir is a directory to make, with a user who owns it and what is in it.
type Dir struct{ Path, Owner string }

// Service is a program that PID 1 keeps running.
type Service struct {
	Name string
	Argv []string
	Env  []string
	// Gate is a URL that must answer 200, or the path of a file that must exist, before the first start.
	Gate string
}

// LogDir is the directory of the services' logs, below Spec.Dir.
const LogDir = "log"

// Load reads a Spec.
func Load(path string) (*Spec, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read host specification: %w", err)
	}
	var s Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("parse host specification %s: %w", path, err)
	}
	return &s, nil
}

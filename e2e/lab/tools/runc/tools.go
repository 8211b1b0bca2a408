//go:build tools

// Package tools pins the lab's runc binaries; the module is built, never imported.
package tools

import (
	_ "github.com/opencontainers/runc"
)

//go:build tools

// Package tools pins the lab's etcd binaries; the module is built, never imported.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)

//go:build tools

// Package tools pins the lab's flannel; the module is built, never imported.
package tools

import (
	_ "github.com/flannel-io/flannel"
	_ "github.com/flannel-io/flannel/cmd/install_conf"
)

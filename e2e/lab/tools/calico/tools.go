//go:build tools

// Package tools pins the Calico that the lab can have as its network plugin; the module is built, never imported.
package tools

import (
	_ "github.com/projectcalico/calico/cni-plugin/cmd/calico"
	_ "github.com/projectcalico/calico/cni-plugin/cmd/install"
	_ "github.com/projectcalico/calico/node/cmd/calico-node"
)

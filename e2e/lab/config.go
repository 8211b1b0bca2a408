package lab

import (
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/plugin"
)

// Limits of the address plan: workers are numbered from 11 and must stay below
// the client, and on the LAN below 172.30.0.128/26, which is left to pools.
const (
	DefaultWorkers = 3
	maxWorkers     = 80
)

// Modes of kube-proxy.
const (
	ProxyNFTables = "nftables"
	ProxyIPTables = "iptables"
)

// Config says what cluster Up makes. The zero value is the default lab.
type Config struct {
	// Workers is the number of workers beside the control plane.
	Workers int
	// Network is the pods' network: plugin.Routes, which the lab makes itself, or another of plugin.Names.
	Network string
	// ProxyMode is kube-proxy's mode: ProxyNFTables or ProxyIPTables.
	ProxyMode string
	// ProxyMinSync is kube-proxy's minSyncPeriod; zero leaves kube-proxy's default.
	ProxyMinSync time.Duration
	// NodeMonitorGracePeriod is the time of silence after which a node becomes
	// NotReady; zero leaves the controller-manager's default.
	NodeMonitorGracePeriod time.Duration
}

func (c Config) withDefaults() Config {
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	if c.Network == "" {
		c.Network = plugin.Routes
	}
	if c.ProxyMode == "" {
		c.ProxyMode = ProxyNFTables
	}
	return c
}

func (c Config) validate() error {
	if c.Workers < 1 || c.Workers > maxWorkers {
		return fmt.Errorf("number of workers %d: want 1 to %d", c.Workers, maxWorkers)
	}
	if _, err := plugin.Find(c.Network); err != nil {
		return err
	}
	if c.ProxyMode != ProxyNFTables && c.ProxyMode != ProxyIPTables {
		return fmt.Errorf("kube-proxy mode %q: want %s or %s", c.ProxyMode, ProxyNFTables, ProxyIPTables)
	}
	if c.ProxyMinSync < 0 || c.NodeMonitorGracePeriod < 0 {
		return fmt.Errorf("negative duration in configuration")
	}
	// Kubelets renew their lease every quarter of the grace period, in whole seconds.
	if g := c.NodeMonitorGracePeriod; g > 0 && g < 4*time.Second {
		return fmt.Errorf("node monitor grace period %s: want 4s or more", g)
	}
	return nil
}

// plugin returns the network of a valid configuration.
func (c Config) plugin() plugin.Plugin {
	p, err := plugin.Find(c.Network)
	if err != nil {
		panic(err)
	}
	return p
}

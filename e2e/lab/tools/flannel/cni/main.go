// Command cni is what nodes call as flannel's CNI plugin, whose sources no module proxy has. Like that plugin it
// turns what flannel wrote about the node into a configuration of the plugin bridge, and calls bridge with it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

const (
	subnetFile = "/run/flannel/subnet.env"
	dataDir    = "/var/lib/cni/flannel"
)

// config is the plugin's part of the list in /etc/cni/net.d.
type config struct {
	CNIVersion    string         `json:"cniVersion"`
	Name          string         `json:"name"`
	Delegate      map[string]any `json:"delegate"`
	RuntimeConfig map[string]any `json:"runtimeConfig"`
}

func main() {
	skel.PluginMainFuncs(
		skel.CNIFuncs{Add: add, Del: remove, Check: func(*skel.CmdArgs) error { return nil }},
		version.All,
		"flannel of the lab",
	)
}

func add(args *skel.CmdArgs) error {
	var c config
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	text, err := os.ReadFile(subnetFile)
	if err != nil {
		return fmt.Errorf("flannel has not written about this node yet: %w", err)
	}
	bridge, err := delegate(c, string(text))
	if err != nil {
		return err
	}

	// The deletion needs the same configuration, whatever flannel has written since.
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dataDir, args.ContainerID), bridge, 0o600); err != nil {
		return err
	}
	result, err := invoke.DelegateAdd(context.Background(), "bridge", bridge, nil)
	if err != nil {
		return fmt.Errorf("call bridge: %w", err)
	}
	return result.Print()
}

func remove(args *skel.CmdArgs) error {
	file := filepath.Join(dataDir, args.ContainerID)
	bridge, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := invoke.DelegateDel(context.Background(), "bridge", bridge, nil); err != nil {
		return fmt.Errorf("call bridge: %w", err)
	}
	return os.Remove(file)
}

// delegate returns the configuration of bridge: the network's own, with the node's subnets and flannel's settings.
func delegate(c config, subnetEnv string) ([]byte, error) {
	env := map[string]string{}
	for line := range strings.Lines(subnetEnv) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[name] = value
		}
	}
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, family := range []string{"FLANNEL_", "FLANNEL_IPV6_"} {
		subnet, ok := env[family+"SUBNET"]
		if !ok {
			continue
		}
		// It is written as the bridge's own address in the subnet.
		prefix, err := netip.ParsePrefix(subnet)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", subnetFile, err)
		}
		ranges = append(ranges, []map[string]string{{"subnet": prefix.Masked().String()}})
		routes = append(routes, map[string]string{"dst": env[family+"NETWORK"]})
	}
	if len(ranges) == 0 {
		return nil, fmt.Errorf("read %s: no subnet", subnetFile)
	}

	bridge := map[string]any{
		"cniVersion": c.CNIVersion, "name": c.Name, "type": "bridge", "isGateway": true,
		"ipMasq": env["FLANNEL_IPMASQ"] != "true",
		"mtu":    json.RawMessage(env["FLANNEL_MTU"]),
		"ipam":   map[string]any{"type": "host-local", "ranges": ranges, "routes": routes},
	}
	if c.RuntimeConfig != nil {
		bridge["runtimeConfig"] = c.RuntimeConfig
	}
	for name, value := range c.Delegate {
		bridge[name] = value
	}
	return json.Marshal(bridge)
}

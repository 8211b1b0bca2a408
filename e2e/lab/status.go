package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// Status writes the state of every host.
func (l *Lab) Status(ctx context.Context, w io.Writer) error {
	down, err := downPorts(ctx)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "HOST\tROLE\tSTATE\tLINKS")
	for _, h := range l.Plan {
		state, err := l.hostState(h)
		if err != nil {
			return err
		}
		var links []string
		for _, leg := range h.Legs {
			s := fmt.Sprintf("%s %s %s %s", leg.Link, leg.Bridge, leg.V4.Addr(), leg.V6.Addr())
			if slices.Contains(down, leg.Port) {
				s += " (cut)"
			}
			links = append(links, s)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", h.Name, h.Role, state, strings.Join(links, ", "))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for table, what := range wire.Faults {
		if _, err := output(ctx, "", "nsenter", "--net="+netnsDir+"/"+switchNetns, "nft", "list", "table", "bridge",
			table); err == nil {
			fmt.Fprintln(w, what)
		}
	}
	proxy := "no kube-proxy"
	if l.Config.plugin().HasKubeProxy {
		proxy = "kube-proxy " + l.Config.ProxyMode
	}
	fmt.Fprintf(w, "network %s, %s, kubeconfig %s\n", l.Config.Network, proxy, l.Kubeconfig())
	return nil
}

func (l *Lab) hostState(h wire.Host) (string, error) {
	if _, err := l.pid(h); err != nil {
		return "off", nil
	}
	dir, err := hostCgroup(h.Name)
	if err != nil {
		return "", err
	}
	if frozen(dir) {
		return "frozen", nil
	}
	return "running", nil
}

// downPorts lists the ports of the switch that are set down.
func downPorts(ctx context.Context) ([]string, error) {
	b, err := output(ctx, "", "ip", "-netns", switchNetns, "-json", "link", "show")
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	var links []struct {
		Name  string   `json:"ifname"`
		Flags []string `json:"flags"`
	}
	if err := json.Unmarshal(b, &links); err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	var down []string
	for _, link := range links {
		if !slices.Contains(link.Flags, "UP") {
			down = append(down, link.Name)
		}
	}
	return down, nil
}

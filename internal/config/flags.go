package config

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Define adds the flags of both daemons to f.
func (opt *Options) Define(f *flag.FlagSet) {
	f.StringVar(
		&opt.LoadBalancerClass,
		"load-balancer-class",
		"holdfast.dev/lb",
		"serve Services of this loadBalancerClass",
	)
	f.BoolVar(&opt.Default, "default-load-balancer", true, "serve Services without a loadBalancerClass too")
	f.BoolVar(
		&opt.OpenStack.Ignore,
		"ignore-openstack-annotations",
		false,
		"ignore the annotations of OpenStack's cloud controller manager",
	)
	f.Func(
		"openstack-node-selector",
		"`selector` of the nodes that announce Services without one of their own",
		func(text string) (err error) {
			opt.NodeSelector, err = ParseNodeSelector(text)
			return err
		},
	)
	f.BoolVar(
		&opt.NoFilter,
		"disable-filter",
		false,
		"do not filter traffic to Services; Holdfast's source ranges and limits have no effect",
	)
	f.Func(
		"data-path",
		"`program` that delivers: KubeProxy, or Other, where nothing waits for kube-proxy, and packets pass every filter by (default KubeProxy)",
		func(text string) error {
			if opt.OtherDataPath = text == "Other"; text != "Other" && text != "KubeProxy" {
				return errors.New("neither KubeProxy nor Other")
			}
			return nil
		},
	)
	f.Func(
		"undeclared-ports",
		"the `answer` at ports that no Service declares, of pools that do not choose it: Drop, Reset or Allow",
		func(text string) error {
			opt.Undeclared = v1beta1.UndeclaredPorts(text)
			if !slices.Contains(
				[]v1beta1.UndeclaredPorts{v1beta1.UndeclaredDrop, v1beta1.UndeclaredReset, v1beta1.UndeclaredAllow},
				opt.Undeclared,
			) {
				return errors.New("not Drop, Reset or Allow")
			}
			return nil
		},
	)
	f.BoolVar(
		&opt.AllowInternal,
		"allow-internal-traffic",
		false,
		"let the cluster's own pods and nodes past source ranges, unless a Service's annotation "+
			"holdfast.dev/internal-traffic says otherwise",
	)
	f.BoolVar(&opt.IgnoreExcludeLabel, "ignore-exclude-label", false, "announce also from nodes with the label "+
		"node.kubernetes.io/exclude-from-external-load-balancers")
	f.Func(
		"proxies",
		"the proxies' headless Service, as `NAMESPACE/NAME`; without it no Service is proxied",
		func(text string) error {
			if opt.Proxy.Service = lb.ParseKey(text); opt.Proxy.Service.Namespace == "" ||
				opt.Proxy.Service.Name == "" {
				return errors.New("not NAMESPACE/NAME")
			}
			return nil
		},
	)
	f.Func(
		"proxy-namespaces",
		"`selector` of the namespaces whose Services may be proxied",
		func(text string) (err error) {
			opt.Proxy.Namespaces, err = ParseNodeSelector(text)
			return err
		},
	)
	f.IntVar(
		&opt.Proxy.MaxNamespaces,
		"proxy-max-namespaces",
		20,
		"most `namespaces` with proxied Services; 0 is no bound",
	)
	f.IntVar(&opt.Proxy.MaxServices, "proxy-max-services", 0, "most proxied `Services` of a namespace; 0 is no bound")
	f.DurationVar(
		&opt.Proxy.MaxIdle,
		"proxy-max-idle",
		time.Hour,
		"longest idle `time` of a proxied connection; a Service that asks for more gets this",
	)
	f.Func(
		"proxy-defaults",
		"`settings` of proxied Services without annotations of their own, as in lb-method=LEAST_CONNECTIONS,timeout-client-data=60000",
		opt.Proxy.setDefaults,
	)
	opt.MorePorts = DefaultMorePorts
	f.Func(
		"max-ports",
		fmt.Sprintf(
			"most `ports` of all Services of a namespace together, beyond the first port of each (default %d)",
			DefaultMorePorts,
		),
		func(text string) (err error) {
			if opt.MorePorts, err = strconv.Atoi(text); err == nil && opt.MorePorts < 1 {
				err = errors.New("not positive")
			}
			return err
		},
	)
}

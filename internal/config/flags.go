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

// Define adds the flags that both daemons have to f.
func (opt *Options) Define(f *flag.FlagSet) {
	f.StringVar(&opt.LoadBalancerClass, "load-balancer-class", "holdfast.dev/lb",
		"serve Services of this loadBalancerClass")
	f.BoolVar(&opt.Default, "default-load-balancer", true, "serve Services without a loadBalancerClass too")
	f.BoolVar(&opt.IgnoreExcludeLabel, "ignore-exclude-label", false,
		"announce also from nodes with the label node.kubernetes.io/exclude-from-external-load-balancers")
	f.Func("max-ports",
		fmt.Sprintf("maximum number of `ports` of all Services of a namespace together, beyond the first port of each "+
			"(default %d)", DefaultMorePorts),
		opt.setMorePorts)
	opt.MorePorts = DefaultMorePorts

	f.BoolVar(&opt.OpenStack.Ignore, "ignore-openstack-annotations", false,
		"ignore the annotations of OpenStack's cloud controller manager")
	f.Func("openstack-node-selector", "`selector` of the nodes that announce Services without one of their own",
		selectorFlag(&opt.NodeSelector))

	opt.defineFilter(f)
	opt.Proxy.define(f)
}

// defineFilter adds the flags of the filter.
func (opt *Options) defineFilter(f *flag.FlagSet) {
	f.BoolVar(&opt.NoFilter, "disable-filter", false,
		"do not filter traffic to Services; Holdfast's source ranges and limits have no effect")
	f.Func("data-path", "`program` that delivers packets: KubeProxy, or Other, where nothing waits for kube-proxy, and "+
		"packets bypass every filter (default KubeProxy)", opt.setDataPath)
	f.Func("undeclared-ports", "the `answer` at ports that no Service declares, of pools that do not choose it: "+
		"Drop, Reset or Allow", opt.setUndeclared)
	f.BoolVar(&opt.AllowInternal, "allow-internal-traffic", false,
		"exempt the cluster's own pods and nodes from source ranges, unless a Service's annotation "+
			"holdfast.dev/internal-traffic says otherwise")
}

// define adds the flags of the proxies.
func (p *ProxyOptions) define(f *flag.FlagSet) {
	f.Func("proxies", "the proxies' headless Service, as `NAMESPACE/NAME`; without it no Service is proxied", p.setService)
	f.Func("proxy-namespaces", "`selector` of the namespaces whose Services may be proxied", selectorFlag(&p.Namespaces))
	f.IntVar(&p.MaxNamespaces, "proxy-max-namespaces", 20,
		"maximum number of `namespaces` with proxied Services; 0 is no bound")
	f.IntVar(&p.MaxServices, "proxy-max-services", 0,
		"maximum number of proxied `Services` of a namespace; 0 is no bound")
	f.DurationVar(&p.MaxIdle, "proxy-max-idle", time.Hour,
		"longest idle `time` of a proxied connection; a Service that asks for more gets this")
	f.Func("proxy-defaults", "`settings` of proxied Services without annotations of their own, as in "+
		"lb-method=LEAST_CONNECTIONS,timeout-client-data=60000", p.setDefaults)
}

// selectorFlag returns the function that parses a selector into s.
func selectorFlag(s *lb.Selector) func(string) error {
	return func(text string) (err error) {
		*s, err = ParseNodeSelector(text)
		return err
	}
}

// setMorePorts reads the value of --max-ports.
func (opt *Options) setMorePorts(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if n < 1 {
		return errors.New("not positive")
	}

	opt.MorePorts = n
	return nil
}

// setDataPath reads the value of --data-path.
func (opt *Options) setDataPath(text string) error {
	if text != "Other" && text != "KubeProxy" {
		return errors.New("neither KubeProxy nor Other")
	}
	opt.OtherDataPath = text == "Other"
	return nil
}

// setUndeclared reads the value of --undeclared-ports.
func (opt *Options) setUndeclared(text string) error {
	policy := v1beta1.UndeclaredPorts(text)
	all := []v1beta1.UndeclaredPorts{v1beta1.UndeclaredDrop, v1beta1.UndeclaredReset, v1beta1.UndeclaredAllow}
	if !slices.Contains(all, policy) {
		return errors.New("not Drop, Reset or Allow")
	}

	opt.Undeclared = policy
	return nil
}

// setService reads the value of --proxies.
func (p *ProxyOptions) setService(text string) error {
	key := lb.ParseKey(text)
	if key.Namespace == "" || key.Name == "" {
		return errors.New("not NAMESPACE/NAME")
	}

	p.Service = key
	return nil
}

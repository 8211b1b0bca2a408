package config

import (
	"errors"
	"flag"
	"strconv"
)

// Define adds the flags of both daemons to f.
func (o *Options) Define(f *flag.FlagSet) {
	f.StringVar(&o.LoadBalancerClass, "load-balancer-class", "holdfast.dev/lb", "serve Services of this loadBalancerClass")
	f.BoolVar(&o.Default, "default-load-balancer", true, "serve Services without a loadBalancerClass too")
	f.BoolVar(&o.OpenStack.Ignore, "ignore-openstack-annotations", false, "ignore the annotations of OpenStack's cloud controller manager")
	f.Func("openstack-node-selector", "`selector` of the nodes that announce Services without one of their own", func(text string) (err error) {
		o.NodeSelector, err = ParseNodeSelector(text)
		return err
	})
	f.BoolVar(&o.NoFilter, "disable-filter", false, "do not filter traffic to Services; Holdfast's source ranges and limits have no effect")
	f.BoolVar(&o.AllowInternal, "allow-internal-traffic", false, "let the cluster's own pods and nodes past source ranges, unless a Service's annotation "+
		"holdfast.dev/internal-traffic says otherwise")
	f.BoolVar(&o.IgnoreExcludeLabel, "ignore-exclude-label", false, "announce also from nodes with the label "+
		"node.kubernetes.io/exclude-from-external-load-balancers")
	o.MorePorts = DefaultMorePorts
	f.Func("max-ports", "most `ports` of all Services of a namespace together, beyond the first port of each (default "+strconv.Itoa(DefaultMorePorts)+")",
		func(text string) (err error) {
			if o.MorePorts, err = strconv.Atoi(text); err == nil && o.MorePorts < 1 {
				err = errors.New("not positive")
			}
			return err
		})
}

package egress

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Numbers of routing rules and tables, for both families. Rules and routes of other programs there stay.
const (
	// insidePriority is the priority of the rules that look up the main table without its default routes, and
	// wayPriority of the rules that look up the table of a way. Both come before the main table (32766), and after the
	// rules of network plugins.
	insidePriority = 32700
	wayPriority    = 32701
	// firstTable is the table of the first way; the next ways have the next tables.
	firstTable = 7301
	// routeProtocol is the protocol of the package's rules and routes. iproute2 knows no program with this number.
	routeProtocol = 72
)

// routing is the routing rules and tables of the ways.
type routing struct {
	log *slog.Logger
	// wanted is what was set last.
	wanted routes
	// isUsed reports whether the kernel may have rules or routes of the package.
	isUsed bool
	// repairs is the number of repairs.
	repairs atomic.Uint64
}

// routes is a content of the kernel.
type routes struct {
	rules  []netlink.Rule
	routes []netlink.Route
}

// wayKey names a way of a family.
type wayKey struct {
	family lb.Family
	number int
}

// add adds the rules and the route of a way.
func (r *routes) add(way lb.EgressWay, number, index int) {
	mask := uint32(wayMask)
	lookup := netlink.NewRule()
	lookup.Family = familyNumber(way.Family)
	lookup.Priority = wayPriority
	lookup.Table = firstTable + number - 1
	lookup.Mark = wayMark(number)
	lookup.Mask = &mask
	lookup.Protocol = routeProtocol

	inside := *lookup
	inside.Priority = insidePriority
	inside.Table = unix.RT_TABLE_MAIN
	inside.SuppressPrefixlen = way.Family.DefaultBits()
	r.rules = append(r.rules, inside, *lookup)

	route := netlink.Route{
		Family:   lookup.Family,
		Table:    lookup.Table,
		Protocol: routeProtocol,
		Type:     unix.RTN_UNICAST,
		Priority: 1,
		MTU:      way.MTU,
		Dst:      anywhere(way.Family),
	}
	for _, a := range way.Gateways {
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{
			LinkIndex: index,
			Gw:        a.WithZone("").AsSlice(),
			Flags:     int(netlink.FLAG_ONLINK),
		})
	}
	if len(route.MultiPath) == 1 {
		hop := route.MultiPath[0]
		route.LinkIndex = hop.LinkIndex
		route.Gw = hop.Gw
		route.Flags = hop.Flags
		route.MultiPath = nil
	}
	r.routes = append(r.routes, route)
}

// anywhere returns the prefix of all addresses of a family.
func anywhere(f lb.Family) *net.IPNet {
	if f == lb.IPv6 {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
}

// familyNumber returns the AF number of a family.
func familyNumber(f lb.Family) int {
	if f == lb.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// wayOfRule returns the way of a wanted rule.
func wayOfRule(r *netlink.Rule) wayKey {
	return wayKey{familyOf(r.Family), int(r.Mark >> wayShift)}
}

// wayOfRoute returns the way whose table has a route.
func wayOfRoute(r *netlink.Route) wayKey {
	return wayKey{familyOf(r.Family), r.Table - firstTable + 1}
}

// familyOf returns the family with an AF number.
func familyOf(number int) lb.Family {
	if number == unix.AF_INET6 {
		return lb.IPv6
	}
	return lb.IPv4
}

// read returns the rules with the package's priorities or protocol, and the routes in its tables.
func (r *routing) read() (out routes, err error) {
	for range attempts {
		out, err = readRouting()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

func readRouting() (out routes, err error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return out, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer handle.Close()

	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err = out.readRules(handle, family)
		if err != nil {
			return out, fmt.Errorf("list routing rules: %w", err)
		}
	}

	// A strict request lists one table; otherwise the kernel lists all.
	err = handle.SetStrictCheck(true)
	if err != nil {
		return out, fmt.Errorf("set strict checks of rtnetlink: %w", err)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err = out.readTables(handle, family)
		if err != nil {
			return out, fmt.Errorf("list routing tables: %w", err)
		}
	}
	return out, nil
}

// readRules adds the rules of a family.
func (r *routes) readRules(handle *netlink.Handle, family int) error {
	rules, err := handle.RuleList(family)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // the kernel has only the main table, or no IPv6
	}
	if err != nil {
		return err
	}

	for _, o := range rules {
		isInPlace := o.Priority == insidePriority || o.Priority == wayPriority
		if isInPlace || o.Protocol == routeProtocol {
			r.rules = append(r.rules, o)
		}
	}
	return nil
}

// readTables adds the routes of a family.
func (r *routes) readTables(handle *netlink.Handle, family int) error {
	for n := range maxWays {
		filter := &netlink.Route{Table: firstTable + n}
		list, err := handle.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE)
		isEmpty := errors.Is(err, unix.ENOENT)
		if err != nil && !isEmpty {
			return err
		}
		r.routes = append(r.routes, list...)
	}
	return nil
}

// ways returns the links of the ways that an earlier process left in the kernel.
func (r *routes) ways() map[lb.Family]waySlots {
	out := make(map[lb.Family]waySlots)
	for i := range r.routes {
		o := &r.routes[i]
		if o.Protocol != routeProtocol || o.Type != unix.RTN_UNICAST {
			continue
		}

		key := wayOfRoute(o)
		slots := out[key.family]
		slots[key.number-1] = hopsOf(o)[0].link
		out[key.family] = slots
	}
	return out
}

// set makes the kernel have exactly these rules and routes. It returns why ways do not work.
func (r *routing) set(want routes) map[wayKey]string {
	if len(want.rules) == 0 && !r.isUsed {
		return nil
	}

	have, err := r.read()
	if err != nil {
		return want.failed(err)
	}

	faults := have.foreign(&want)
	want = want.without(faults)
	isUsed := len(want.rules) > 0
	isSame := isUsed && want.equal(&r.wanted)
	r.wanted = want

	changes, err := have.changeTo(&want, faults)
	r.isUsed = isUsed || err != nil
	if err != nil {
		r.log.Warn("cannot delete routing rules or routes", "error", err)
	}
	if isSame && changes > 0 {
		r.repairs.Add(1)
		r.log.Info("repaired routing rules and tables of ways", "changes", changes)
	}
	return faults
}

// remove deletes all rules and routes of the package.
func (r *routing) remove() error {
	if !r.isUsed {
		return nil
	}

	have, err := r.read()
	if err != nil {
		return err
	}

	_, err = have.changeTo(&routes{}, nil)
	r.wanted, r.isUsed = routes{}, err != nil
	return err
}

// failed returns a fault of all ways.
func (r *routes) failed(err error) map[wayKey]string {
	out := make(map[wayKey]string)
	for i := range r.rules {
		out[wayOfRule(&r.rules[i])] = "cannot route: " + err.Error()
	}
	return out
}

// foreign returns which of the wanted ways have rules or routes of another program in their place.
func (r *routes) foreign(want *routes) map[wayKey]string {
	out := make(map[wayKey]string)
	for i := range want.rules {
		wanted := &want.rules[i]
		isForeign := func(o netlink.Rule) bool {
			isInPlace := o.Family == wanted.Family && o.Priority == wanted.Priority
			return isInPlace && o.Protocol != routeProtocol
		}
		if slices.ContainsFunc(r.rules, isForeign) {
			out[wayOfRule(wanted)] = fmt.Sprintf("another program has a routing rule of priority %d", wanted.Priority)
		}
	}

	for i := range r.routes {
		o := &r.routes[i]
		if o.Protocol != routeProtocol {
			out[wayOfRoute(o)] = fmt.Sprintf("another program has a route in table %d", o.Table)
		}
	}
	return out
}

// without returns the rules and routes of all ways without a fault.
func (r *routes) without(faults map[wayKey]string) (out routes) {
	for i := range r.rules {
		if faults[wayOfRule(&r.rules[i])] == "" {
			out.rules = append(out.rules, r.rules[i])
		}
	}
	for i := range r.routes {
		if faults[wayOfRoute(&r.routes[i])] == "" {
			out.routes = append(out.routes, r.routes[i])
		}
	}
	return out
}

// changeTo changes the kernel from one content to another. It adds before it deletes, and does not touch what other
// programs own. It adds to the faults of ways, and returns the number of changes.
func (r *routes) changeTo(want *routes, faults map[wayKey]string) (changes int, err error) {
	changes = r.addMissing(want, faults)

	for _, stale := range r.staleRules(want) {
		changes++
		deleted := netlink.RuleDel(&stale)
		err = errors.Join(err, ignore(deleted, unix.ENOENT))
	}
	for _, stale := range r.staleRoutes(want) {
		changes++
		deleted := netlink.RouteDel(&stale)
		err = errors.Join(err, ignore(deleted, unix.ESRCH))
	}
	return changes, err
}

// addMissing adds the routes and rules that are wanted and missing, and returns their number.
func (r *routes) addMissing(want *routes, faults map[wayKey]string) (added int) {
	note := func(key wayKey, err error) {
		if err != nil {
			faults[key] = "cannot route: " + err.Error()
			return
		}
		added++
	}

	for i := range want.routes {
		wanted := &want.routes[i]
		isThere := func(o netlink.Route) bool { return sameRoute(&o, wanted) }
		if !slices.ContainsFunc(r.routes, isThere) {
			note(wayOfRoute(wanted), netlink.RouteReplace(wanted))
		}
	}
	for i := range want.rules {
		wanted := &want.rules[i]
		isThere := func(o netlink.Rule) bool { return sameRule(&o, wanted) }
		if !slices.ContainsFunc(r.rules, isThere) {
			err := netlink.RuleAdd(wanted)
			note(wayOfRule(wanted), ignore(err, unix.EEXIST))
		}
	}
	return added
}

// staleRules returns the package's rules that are not wanted. The rules that keep packets inside come last.
func (r *routes) staleRules(want *routes) (out []netlink.Rule) {
	for _, o := range r.rules {
		isSame := func(wanted netlink.Rule) bool { return sameRule(&o, &wanted) }
		if o.Protocol == routeProtocol && !slices.ContainsFunc(want.rules, isSame) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b netlink.Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	return out
}

// staleRoutes returns the package's routes in whose place none is wanted.
func (r *routes) staleRoutes(want *routes) (out []netlink.Route) {
	for _, o := range r.routes {
		isInPlace := func(wanted netlink.Route) bool {
			return wanted.Family == o.Family &&
				wanted.Table == o.Table &&
				wanted.Priority == o.Priority &&
				wanted.Dst.String() == o.Dst.String()
		}
		if o.Protocol == routeProtocol && !slices.ContainsFunc(want.routes, isInPlace) {
			out = append(out, o)
		}
	}
	return out
}

// ignore returns an error unless it is the ignored one.
func ignore(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}

// equal reports whether two contents are the same.
func (r *routes) equal(o *routes) bool {
	isSameRule := func(a, b netlink.Rule) bool { return sameRule(&a, &b) }
	isSameRoute := func(a, b netlink.Route) bool { return sameRoute(&a, &b) }
	return slices.EqualFunc(r.rules, o.rules, isSameRule) &&
		slices.EqualFunc(r.routes, o.routes, isSameRoute)
}

// sameRule reports whether a rule is a wanted one.
func sameRule(o, wanted *netlink.Rule) bool {
	hasOther := o.Src != nil || o.Dst != nil || o.IifName != "" || o.OifName != "" || o.Invert
	return !hasOther &&
		o.Protocol == wanted.Protocol &&
		o.Family == wanted.Family &&
		o.Priority == wanted.Priority &&
		o.Mark == wanted.Mark &&
		o.Mask != nil &&
		*o.Mask == *wanted.Mask &&
		o.Table == wanted.Table &&
		o.SuppressPrefixlen == wanted.SuppressPrefixlen
}

// sameRoute reports whether a route is a wanted one.
func sameRoute(o, wanted *netlink.Route) bool {
	return o.Protocol == wanted.Protocol &&
		o.Family == wanted.Family &&
		o.Table == wanted.Table &&
		o.Priority == wanted.Priority &&
		o.Type == wanted.Type &&
		o.MTU == wanted.MTU &&
		o.Dst.String() == wanted.Dst.String() &&
		slices.Equal(hopsOf(o), hopsOf(wanted))
}

// nextHop is a router on a link.
type nextHop struct {
	link    int
	gateway netip.Addr
}

func (h nextHop) compare(o nextHop) int {
	return cmp.Or(
		cmp.Compare(h.link, o.link),
		h.gateway.Compare(o.gateway),
	)
}

// hopsOf returns the next hops of a route, in order.
func hopsOf(r *netlink.Route) (out []nextHop) {
	add := func(link int, gateway net.IP) {
		a, _ := netip.AddrFromSlice(gateway)
		out = append(out, nextHop{link, a.Unmap()})
	}
	for _, h := range r.MultiPath {
		add(h.LinkIndex, h.Gw)
	}
	if len(out) == 0 {
		add(r.LinkIndex, r.Gw)
	}
	slices.SortFunc(out, nextHop.compare)
	return out
}

package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-lb/holdfast/internal/config"
)

const (
	// serviceCIDRsPath lists a kind that API servers have from Kubernetes 1.33 on.
	serviceCIDRsPath = "/apis/networking.k8s.io/v1/servicecidrs"
	// serviceCIDRsInterval is the time between two lists. The kind changes when an administrator adds a range; a watch
	// of a kind that the API server may not have yet would have to be repeated too, and its types would be in every
	// speaker's program.
	serviceCIDRsInterval = time.Minute
	// serviceCIDRsTime bounds one list.
	serviceCIDRsTime = 5 * time.Second
)

// serviceCIDRs are the ServiceCIDRs as last listed. Where the API server does not have the kind there are none.
type serviceCIDRs struct {
	last atomic.Pointer[[]config.ServiceCIDR]
	// one list is made at a time.
	mu     sync.Mutex
	failed bool
}

// all returns the same list as before while nothing changed.
func (s *serviceCIDRs) all() []config.ServiceCIDR {
	if list := s.last.Load(); list != nil {
		return *list
	}
	return nil
}

// run lists them until ctx is cancelled: an upgrade brings the kind while the process runs.
func (s *serviceCIDRs) run(ctx context.Context, k *Cluster) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) { s.refresh(ctx, k) }, serviceCIDRsInterval)
	return nil
}

// refresh lists them once, and kicks if they changed. An error leaves what is known, and is logged once: ClusterIPs
// show the ranges too.
func (s *serviceCIDRs) refresh(ctx context.Context, k *Cluster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, serviceCIDRsTime)
	defer cancel()
	list, err := k.clients.serviceCIDRs(ctx)
	if err != nil {
		if !s.failed && ctx.Err() == nil {
			k.config.Log.Warn(
				"cannot list ServiceCIDRs; pools withhold only the ClusterIPs that are in use",
				"error",
				err,
			)
			s.failed = true
		}
		return
	}
	s.failed = false
	if !reflect.DeepEqual(s.all(), list) {
		s.last.Store(&list)
		k.config.Kick()
	}
}

// serviceCIDRs lists them from the API server; none if it does not have the kind.
func (c Clients) serviceCIDRs(ctx context.Context) (out []config.ServiceCIDR, err error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				CIDRs []string `json:"cidrs"`
			} `json:"spec"`
		} `json:"items"`
	}
	text, err := c.kube.core.Get().AbsPath(serviceCIDRsPath).SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err == nil:
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	for _, item := range list.Items {
		s := config.ServiceCIDR{Name: item.Metadata.Name}
		for _, cidr := range item.Spec.CIDRs {
			if p, err := netip.ParsePrefix(cidr); err == nil { // the API server has checked it
				s.CIDRs = append(s.CIDRs, p)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

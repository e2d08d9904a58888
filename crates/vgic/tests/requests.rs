//! Requests that are taken in part.

use stile_vgic::PendingRequests;

const SPI: u32 = PendingRequests::POSTED.start;

#[test]
fn a_withdrawn_spi_leaves_no_request() {
    let requests = PendingRequests::new();
    assert!(requests.post_spi(SPI) && requests.withdraw_spi(SPI));
    assert!(requests.is_empty(), "the vCPU would sync with the distributor at its next load");
    assert!(!requests.withdraw_spi(SPI));
}

#[test]
fn a_withdrawn_spi_leaves_what_others_request() {
    let requests = PendingRequests::new();
    assert!(requests.post_spi(SPI) && requests.post_spi(SPI + 1) && requests.withdraw_spi(SPI));
    let taken = requests.take();
    assert!(taken.spis() && taken.posted().eq([SPI + 1]));

    requests.announce_spis();
    requests.post_sgi(3);
    assert!(requests.post_spi(SPI) && requests.withdraw_spi(SPI));
    let taken = requests.take();
    assert!(taken.spis() && taken.posted().next().is_none() && taken.sgis().eq([3]), "the distributor has changed");
}

#[test]
fn posted_spis_are_taken_without_others() {
    let requests = PendingRequests::new();
    requests.post_sgi(3);
    assert!(requests.post_spi(SPI) && requests.post_spi(SPI + 5));
    assert!(requests.take_posted().posted().eq([SPI, SPI + 5]));
    let taken = requests.take();
    assert!(!taken.spis() && taken.sgis().eq([3]));
}

#[test]
fn private_requests_are_taken_without_others() {
    let requests = PendingRequests::new();
    requests.post_sgi(3);
    requests.announce_private();
    assert!(requests.post_spi(SPI));
    assert!(requests.take_private().sgis().eq([3]));
    let taken = requests.take();
    assert!(taken.spis() && taken.posted().eq([SPI]) && taken.sgis().next().is_none());
}

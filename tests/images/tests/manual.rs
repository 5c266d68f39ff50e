//! temporary
use lockgate_images::{Bench, Hostile, Image, Layer, Reply};
#[test]
fn endless_1xx() {
    let s = Hostile::start(|_, _| Reply::raw(b"").endlessly(b"HTTP/1.1 100 Continue\r\n\r\n"));
    let b = Bench::new();
    println!("1xx {} sent {}", b.pull(&format!("{}/app", s.address())), s.sent());
}
#[test]
fn trailing_spaces_uid() {
    // all-NUL uid
    let mut a = Layer::files(&[("x", "y")], lockgate_images::Packed::Plain).blob.octets;
    for i in 108..124 { a[i] = 0; }
    for i in 148..156 { a[i] = b' '; }
    let sum: u32 = a[..512].iter().map(|b| u32::from(*b)).sum();
    a[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let im = Image::new(&[Layer::archive(a, lockgate_images::Packed::Plain)]);
    let s = Hostile::start(move |h, _| Reply::honest(h, &im));
    let b = Bench::new();
    println!("uid {}", b.pull(&format!("{}/app", s.address())));
}
